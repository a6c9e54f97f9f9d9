// The outputs of each line, and the tokens of one of them.

const unit = 1; // of weights
const state = { words: false, side: "queries", index: 0 };
let outputs = []; // of each line: its element, its hypotheses, the chosen one, and the source's tokens
let tokens = { queries: [], keys: [] };
let chosenLine = null; // whose outputs are shown below, if someone chose one; otherwise the first
const piecesOf = (side) => tokens[side];
const outputText = () => outputs.map(({ element }) => element.textContent).join("\n");

function clearOutputs(lines = 0) {
  outputs = Array.from({ length: lines }, () => ({ element: make("p", { dir: "auto" }), hypotheses: [], chosen: 0 }));
  at("output").replaceChildren(...outputs.map(({ element }) => element));
  at("line").replaceChildren();
  chosenLine = null;
  at("more").hidden = at("copy").disabled = true;
}

function finish(line, { hypotheses, source_tokens: sources, words, labels, objects }) {
  const output = outputs[line];
  at("copy").disabled = false;
  if (words) output.element.textContent = words.map((word, index) => `${word}/${labels[index]}`).join(" ");
  if (objects) output.element.textContent = objects.map((item) => Object.values(item).join(" ")).join("\n") || "nothing";
  if (!hypotheses) return;
  Object.assign(output, { hypotheses, sources });
  choose(line, 0);
  const options = outputs.flatMap((other, index) => (other.hypotheses.length ? [index] : []));
  at("line").replaceChildren(...options.map((index) => make("option", { value: index }, String(index + 1))));
  at("line").value = chosenLine ?? options[0];
  at("line-field").hidden = options.length < 2;
  if (Number(at("line").value) === line) showLine();
}

function choose(line, place) {
  const output = outputs[line], { text, word_confidences: confidences } = output.hypotheses[place];
  output.chosen = place;
  output.element.replaceChildren(...marked(text, confidences));
}

function showLine() {
  const line = Number(at("line").value), { hypotheses, chosen } = outputs[line];
  at("more").hidden = false;
  at("alternatives").hidden = hypotheses.length < 2;
  at("alternatives").replaceChildren(at("alternatives").querySelector("legend"),
    ...hypotheses.map(({ text, score }, place) => {
      const input = make("input", { type: "radio", name: "alternative", value: place });
      input.checked = place === chosen;
      input.addEventListener("change", () => {
        choose(line, place);
        showTokens();
      });
      return make("label", {}, input, make("span", { class: "text", dir: "auto" }, text || "(empty)"),
        make("span", { class: "score" }, `score ${signed(score, 3)}`));
    }));
  showTokens();
}

function showTokens() {
  const { hypotheses, chosen, sources } = outputs[Number(at("line").value)];
  const { tokens: pieces, alignment, log_probability: logP } = hypotheses[chosen];
  at("score").textContent = `log P ${signed(logP, 2)}`;
  at("attention").hidden = !alignment || !sources;
  if (at("attention").hidden) return;
  tokens = { queries: [...pieces, "</s>"], keys: [...sources, "</s>"] };
  Object.assign(state, { words: at("words").checked, side: "queries", index: 0 });
  drawWords(weightsOf([alignment]));
  pin("queries", 0);
}

at("line").addEventListener("change", () => {
  chosenLine = Number(at("line").value);
  showLine();
});
at("words").addEventListener("change", showTokens);
