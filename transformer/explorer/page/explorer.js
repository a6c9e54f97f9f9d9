// The choices, and all of the page.

whenShown = markMap;

function segments(id, options, current, choose) {
  const fieldset = at(id);
  fieldset.replaceChildren(fieldset.querySelector("legend"));
  for (const [value, name] of options) {
    const input = make("input", { type: "radio", name: id, value });
    input.checked = value === current;
    input.addEventListener("change", () => choose(value));
    fieldset.append(make("label", {}, input, name));
  }
}

function counted(size) {
  return [[MEAN, "Mean"], ...Array.from({ length: size }, (_, index) => [index, String(index + 1)])];
}

function showChoices() {
  const choose = (name) => (value) => {
    state[name] = value;
    showWords();
    markGrid();
  };
  segments("kind", Object.entries(KINDS).map(([kind, [name]]) => [kind, name]), state.kind, (kind) => {
    Object.assign(state, { kind, index: 0, side: "queries" });
    if (state.layer >= layers().length) state.layer = MEAN; // encoder and decoder may differ in depth
    showAttention();
    at("kind").querySelector("input:checked").focus();
  });
  segments("layer", counted(layers().length), state.layer, choose("layer"));
  segments("head", counted(layers()[0].length), state.head, choose("head"));
}

function showWords() {
  const [, ...titles] = KINDS[state.kind];
  Object.keys(buttons).forEach((side, which) => {
    at(`${side}-title`).textContent = titles[which];
  });
  drawWords(chosenWeights());
  showMap();
  pin(state.side, Math.min(state.index, buttons[state.side].length - 1));
}

function showHypotheses() {
  const { text: source, rest } = sentence(), read = source.slice(0, source.length - rest.length);
  at("source-text").replaceChildren(read, make("span", { class: "rest" }, rest));
  at("cut").hidden = sentence().cut <= 0;
  at("cut").textContent = `Longer than the model reads: the last ${sentence().cut} tokens were left out.`;
  const fieldset = at("hypotheses");
  fieldset.replaceChildren(fieldset.querySelector("legend"));
  at("confidence-note").hidden = !sentence().hypotheses.some(({ confidences }) => confidences);
  sentence().hypotheses.forEach(({ text, score, logP, confidences }, index) => {
    const input = make("input", { type: "radio", name: "hypothesis", value: index });
    input.checked = index === state.hypothesis;
    input.addEventListener("change", () => chooseHypothesis(index));
    const words = make("span", { class: "text", dir: "auto" }, ...marked(text || "(empty)", confidences));
    const numbers = make("span", { class: "score" }, `score ${signed(score, 3)}, log P ${signed(logP, 2)}`);
    fieldset.append(make("label", {}, input, words, numbers));
  });
}

function chooseHypothesis(index) {
  Object.assign(state, { hypothesis: index, side: "queries", index: 0 });
  at("hypotheses").querySelectorAll("input")[index].checked = true;
  showAttention();
  markPath(lastOf(index));
  showEnd();
}

function showAttention() {
  showParse();
  showChoices();
  showWords();
  showGrid();
}

function showSentence(chosen = { hypothesis: 0, side: "queries", index: 0 }) {
  Object.assign(state, chosen);
  showHypotheses();
  showAttention();
  showTree();
}

document.title = ["Attention explorer", origin].filter(Boolean).join(": ");
if (!hasSource) at("translations-title").textContent = "What follows the prompt";
at("origin").textContent = origin;
sentences.forEach(({ line, text }, index) => {
  at("sentence").append(make("option", { value: index }, `${line}. ${shorter(text, 60)}`));
});
at("sentence-field").hidden = sentences.length < 2;
at("sentence").addEventListener("change", () => {
  state.sentence = Number(at("sentence").value);
  showSentence();
});
const texts = sentences.flatMap(({ source, hypotheses }) => [source, ...hypotheses.map(({ target }) => target)]);
at("words-field").hidden = texts.every((pieces) => beginnings(pieces).every(Boolean));
at("words").addEventListener("change", () => {
  Object.assign(state, { words: at("words").checked, side: "queries", index: 0 });
  showWords();
  showGrid();
});

const named = (index) => (index === MEAN ? "mean" : index + 1);
if (sentences.length) inAddress(
  () => ({ line: sentence().line, output: state.hypothesis + 1, kind: state.kind, layer: named(state.layer),
    head: named(state.head), side: state.side, token: state.index + 1, words: Number(state.words) }),
  ({ line, output, kind, layer, head, side, token, words }) => {
    state.sentence = indexOfLine(sentences, line);
    state.hypothesis = indexOf(output, sentence().hypotheses.length);
    if (Object.hasOwn(KINDS, kind)) state.kind = kind;
    state.layer = indexOf(layer, layers().length, MEAN);
    state.head = indexOf(head, layers()[0].length, MEAN);
    state.words = at("words").checked = words === "1";
    at("sentence").value = state.sentence;
    const pinned = { side: Object.hasOwn(buttons, side) ? side : "queries", index: indexOf(token, Infinity) };
    showSentence({ hypothesis: state.hypothesis, ...pinned });
  },
);
