"use strict";
const { unit, sentences } = JSON.parse(document.getElementById("data").textContent);
const MEAN = -1; // of all layers, or of all heads
const KINDS = {
  cross: ["Cross", "Output, word by word as it is chosen", "Source that it looks at"],
  encoder: ["Encoder", "Source, as it is read", "Source that it looks at"],
  decoder: ["Decoder", "Output, word by word as it is chosen", "Words said before that it looks at"],
};
const LARGEST_MAP = 10000; // cells: beyond, a map can neither be read nor drawn in time
const state = {
  sentence: 0, hypothesis: 0, kind: "cross", layer: MEAN, head: MEAN,
  side: "looking", index: 0, // the word that was chosen last
};
const at = (id) => document.getElementById(id);
const marked = { looking: [], "looked-at": [] }; // the buttons of each row
let weights = []; // of the layer and head chosen: [looking][looked at]

// Text only ever becomes text: nothing that a model says is read as markup.
function make(name, attributes = {}, ...children) {
  const drawn = ["svg", "g", "rect", "text", "path", "circle", "title"].includes(name);
  const space = drawn ? "http://www.w3.org/2000/svg" : "http://www.w3.org/1999/xhtml";
  const element = document.createElementNS(space, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// What the data says

const sentence = () => sentences[state.sentence];
const hypothesis = () => sentence().hypotheses[state.hypothesis];
const layers = () => (state.kind === "encoder" ? sentence() : hypothesis())[state.kind];

function wordsOf(side) {
  if (state.kind === "encoder") return sentence().source;
  if (side === "looking") return hypothesis().target;
  return state.kind === "decoder" ? hypothesis().given : sentence().source;
}

function mean(several) {
  const average = (i, j) => several.reduce((sum, one) => sum + one[i][j], 0) / several.length;
  return several[0].map((row, i) => row.map((_, j) => average(i, j)));
}

function chosenWeights() {
  const some = state.layer === MEAN ? layers() : [layers()[state.layer]];
  const heads = some.flatMap((layer) => (state.head === MEAN ? layer : [layer[state.head]]));
  return mean(heads).map((row) => row.map((weight) => weight / unit));
}

// How words are shown

const special = (piece) => /^<\/?s>$/.test(piece);
// SentencePiece marks where words begin, subword-nmt where they go on
const plain = (piece) => (piece.length > 1 ? piece.replace(/^▁|@@$/g, "") : piece);
const shorter = (text, length) => {
  const letters = [...text];
  return letters.length > length ? letters.slice(0, length - 1).join("") + "…" : text;
};
const signed = (number, digits) => number.toFixed(digits).replace("-", "−");

function beginnings(pieces) {
  const spaced = pieces.some((piece) => piece.startsWith("▁"));
  return pieces.map((piece, index) => index === 0 || special(piece) || special(pieces[index - 1])
    || (spaced ? piece.startsWith("▁") : !pieces[index - 1]?.endsWith("@@")));
}

function shade(element, weight) {
  const amount = Math.sqrt(weight);
  element.style.setProperty("--shade", amount.toFixed(3));
  element.classList.toggle("middling", amount > 0.55); // where dark and light letters read alike,
  element.classList.toggle("strong", amount > 0.75); // in the dark and in the light
}

// Choices

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
  const kinds = Object.entries(KINDS).map(([kind, [name]]) => [kind, name]);
  segments("kind", kinds, state.kind, (kind) => {
    // the same number of layers is not promised: encoder and decoder may differ
    Object.assign(state, { kind, index: 0, side: "looking" });
    if (state.layer >= layers().length) state.layer = MEAN;
    showChoices();
    showWords();
    at("kind").querySelector("input:checked").focus();
  });
  segments("layer", counted(layers().length), state.layer, (layer) => { state.layer = layer; showWords(); });
  segments("head", counted(layers()[0].length), state.head, (head) => { state.head = head; showWords(); });
}

function showHypotheses() {
  at("source-text").textContent = sentence().text;
  const fieldset = at("hypotheses");
  fieldset.replaceChildren(fieldset.querySelector("legend"));
  sentence().hypotheses.forEach(({ text, score }, index) => {
    const input = make("input", { type: "radio", name: "hypothesis", value: index });
    input.checked = index === state.hypothesis;
    input.addEventListener("change", () => chooseHypothesis(index));
    const words = make("span", { class: "text", dir: "auto" }, text || "(nothing)");
    const title = "log-probability, length penalty applied";
    const number = make("span", { class: "score", title }, signed(score, 3));
    fieldset.append(make("label", {}, input, words, number));
  });
}

function chooseHypothesis(index) {
  Object.assign(state, { hypothesis: index, side: "looking", index: 0 });
  at("hypotheses").querySelectorAll("input")[index].checked = true;
  showChoices();
  showWords();
  markPath(lastOf(index));
}

// Words

function showWords() {
  weights = chosenWeights();
  const [, ...titles] = KINDS[state.kind];
  ["looking", "looked-at"].forEach((side, which) => {
    at(`${side}-title`).textContent = titles[which];
    const pieces = wordsOf(side), begins = beginnings(pieces);
    marked[side] = pieces.map((piece, index) => {
      const classes = `word${begins[index] ? " begins" : ""}${special(piece) ? " special" : ""}`;
      const place = { "data-side": side, "data-index": index };
      const button = make("button", { type: "button", class: classes, dir: "auto", ...place },
        make("span", { class: "piece" }, plain(piece)), make("span", { class: "number" }));
      button.addEventListener("pointerenter", () => show(side, index));
      button.addEventListener("pointerleave", () => show(state.side, state.index));
      button.addEventListener("focus", () => pin(side, index));
      button.addEventListener("click", () => pin(side, index));
      return button;
    });
    at(side).replaceChildren(...marked[side]);
  });
  showMap();
  state.index = Math.min(state.index, marked[state.side].length - 1);
  pin(state.side, state.index);
}

// Until another word is pinned, the page comes back to this one.
function pin(side, index) {
  Object.assign(state, { side, index });
  show(side, index);
}

function show(side, index) {
  const looking = side === "looking", other = looking ? "looked-at" : "looking";
  const found = looking ? weights[index] : weights.map((row) => row[index]);
  for (const [row, buttons] of Object.entries(marked)) {
    buttons.forEach((button, place) => {
      const weight = row === other ? found[place] : null;
      const chosen = row === side && place === index;
      button.classList.toggle("chosen", chosen);
      button.setAttribute("aria-pressed", chosen);
      button.tabIndex = place === (row === side ? index : 0) ? 0 : -1;
      button.querySelector(".number").textContent = weight === null ? "" : weight.toFixed(2);
      if (weight === null) delete button.dataset.weight;
      else button.dataset.weight = weight.toFixed(4);
      shade(button, weight ?? 0);
    });
  }
  const names = wordsOf(other);
  const best = found.map((weight, place) => [weight, place]).sort(([a], [b]) => b - a).slice(0, 5);
  const list = best.filter(([weight]) => weight >= 0.0005)
    .map(([weight, place]) => `${plain(names[place])} ${weight.toFixed(3)}`);
  at("readout").replaceChildren(
    make("strong", {}, plain(wordsOf(side)[index])),
    looking ? " looks at " : " is looked at by ", list.join(" · ") || "nothing");
  markMap(side, index);
}

// Arrow keys move within a row, Tab from row to row.
for (const side of Object.keys(marked)) {
  at(side).addEventListener("keydown", (event) => {
    const last = marked[side].length - 1;
    const index = marked[side].indexOf(document.activeElement);
    const moved = { ArrowRight: index + 1, ArrowLeft: index - 1, Home: 0, End: last }[event.key];
    const target = marked[side][moved];
    if (!target) return;
    event.preventDefault();
    target.focus();
  });
}

// The map

const CELL = 26, LABEL = 118, TOP = 78;

function showMap() {
  const rows = wordsOf("looking"), columns = wordsOf("looked-at");
  at("map-part").hidden = rows.length * columns.length > LARGEST_MAP;
  if (at("map-part").hidden) return at("map").replaceChildren();
  const width = LABEL + columns.length * CELL + 72, height = TOP + rows.length * CELL + 4;
  const label = "Weights: a row for each word that looks";
  const svg = make("svg", { width, height, role: "img", "aria-label": label });
  columns.forEach((piece, j) => {
    const transform = `translate(${LABEL + j * CELL + 15} ${TOP - 8}) rotate(-48)`;
    svg.append(make("text", { "font-size": 14, transform }, shorter(plain(piece), 12)));
  });
  rows.forEach((piece, i) => {
    const y = TOP + i * CELL;
    const left = { x: LABEL - 8, y: y + 18, "font-size": 14, "text-anchor": "end" };
    svg.append(make("text", left, shorter(plain(piece), 14)));
    columns.forEach((_, j) => {
      const box = { x: LABEL + j * CELL, y, width: CELL - 1, height: CELL - 1, rx: 2 };
      const cell = make("rect", { class: "cell", ...box },
        make("title", {}, `${plain(piece)} → ${plain(columns[j])}: ${weights[i][j].toFixed(4)}`));
      shade(cell, weights[i][j]);
      cell.addEventListener("pointerenter", () => show("looking", i));
      cell.addEventListener("click", () => pin("looking", i));
      svg.append(cell);
    });
  });
  svg.addEventListener("pointerleave", () => show(state.side, state.index));
  svg.append(make("rect", { class: "band", rx: 3 }));
  at("map").replaceChildren(svg);
}

function markMap(side, index) {
  const band = at("map").querySelector(".band");
  if (!band) return;
  const across = side === "looking", rows = weights.length * CELL, columns = weights[0].length * CELL;
  const box = { x: LABEL - 1 + (across ? 0 : index * CELL), y: TOP - 1 + (across ? index * CELL : 0),
    width: (across ? columns : CELL) + 1, height: (across ? CELL : rows) + 1 };
  for (const [key, value] of Object.entries(box)) band.setAttribute(key, value);
}

// The beam tree

const STEP = 118, BOX = 88, RANK = 46;
let nodes = [], edges = [];

const lastOf = (place) => (sentence().tree ?? []).findIndex((candidate) => candidate.place === place);
const placed = ({ step, rank }) => [step * STEP, 24 + rank * RANK];

function showTree() {
  const tree = sentence().tree;
  at("tree-part").hidden = !tree;
  if (!tree) return;
  const width = (Math.max(...tree.map(({ step }) => step)) + 1) * STEP;
  const height = 30 + (Math.max(...tree.map(({ rank }) => rank)) + 1) * RANK;
  const svg = make("svg", { width, height });
  const start = make("g", { class: "node" }, make("rect", { x: 0.5, y: 24.5, width: BOX, height: 36, rx: 6 }),
    make("text", { x: 8, y: 47, "font-size": 14 }, "<s>"));
  for (let step = 1; step * STEP < width; step++) {
    svg.append(make("text", { class: "column", x: step * STEP + BOX / 2, y: 13 }, `step ${step}`));
  }
  edges = tree.map((candidate) => {
    const [x, y] = placed(candidate);
    const [px, py] = candidate.parent === null ? [0, 24] : placed(tree[candidate.parent]);
    const from = px + BOX, middle = (from + x) / 2;
    const d = `M${from} ${py + 18} C${middle} ${py + 18} ${middle} ${y + 18} ${x} ${y + 18}`;
    return make("path", { class: `edge ${candidate.fate}`, d });
  });
  nodes = tree.map((candidate, index) => {
    const [x, y] = placed(candidate);
    const reached = { tabindex: -1, role: "button", "aria-label": described(index), "data-index": index };
    const g = make("g", { class: `node ${candidate.fate}`, transform: `translate(${x} ${y})`, ...reached },
      make("rect", { x: 0.5, y: 0.5, width: BOX, height: 36, rx: 6 }),
      make("text", { x: 8, y: 16, "font-size": 14 }, shorter(plain(candidate.token), 10)),
      make("text", { class: "log-p", x: 8, y: 30 }, signed(candidate.logP, 2)));
    if (candidate.place !== null) {
      g.append(make("circle", { class: "badge", cx: BOX - 11, cy: 18.5, r: 8 }),
        make("text", { class: "place", x: BOX - 11, y: 22 }, String(candidate.place + 1)));
    }
    g.addEventListener("pointerenter", () => markPath(index));
    g.addEventListener("pointerleave", () => markPath(lastOf(state.hypothesis)));
    g.addEventListener("focus", () => markPath(index));
    g.addEventListener("blur", () => markPath(lastOf(state.hypothesis)));
    g.addEventListener("click", () => chooseCandidate(index));
    return g;
  });
  svg.append(...edges, start, ...nodes);
  at("tree").replaceChildren(svg);
  showPruned();
  markPath(lastOf(state.hypothesis));
}

function pathTo(index) {
  const path = [];
  for (let here = index; here !== null && here >= 0; here = sentence().tree[here].parent) path.unshift(here);
  return path;
}

function described(index) {
  const { step, rank, logP, gained, fate, score, place } = sentence().tree[index];
  const tokens = pathTo(index).map((here) => sentence().tree[here].token);
  const begins = beginnings(tokens);
  const text = tokens.map((token, here) => (begins[here] && here ? " " : "") + plain(token)).join("");
  const share = `its last word ${Math.exp(gained).toFixed(3)} likely`;
  const unfinished = { live: "went on", pruned: "pruned" }[fate];
  const end = score === null ? unfinished : `finished, score ${signed(score, 3)}`;
  const kept = place === null ? "" : `, hypothesis ${place + 1}`;
  return `${text}: step ${step}, place ${rank + 1}, log P ${signed(logP, 3)}, ${share}, ${end}${kept}`;
}

function markPath(index) {
  if (!nodes.length || index < 0) return;
  const path = new Set(pathTo(index));
  nodes.forEach((node, here) => {
    node.classList.toggle("on", path.has(here));
    edges[here].classList.toggle("on", path.has(here));
    node.setAttribute("tabindex", here === index ? 0 : -1);
  });
  at("tree-readout").textContent = described(index);
}

function chooseCandidate(index) {
  const { place } = sentence().tree[index];
  if (place !== null && place < sentence().hypotheses.length) chooseHypothesis(place);
  markPath(index);
}

function showPruned() {
  const seen = at("pruned").checked;
  [...nodes, ...edges].forEach((element) => {
    element.style.display = element.classList.contains("pruned") && !seen ? "none" : "";
  });
}

at("pruned").addEventListener("change", showPruned);
at("tree").addEventListener("keydown", (event) => {
  const tree = sentence().tree, index = nodes.indexOf(document.activeElement);
  if (index < 0) return;
  const seen = (here) => nodes[here] && nodes[here].style.display !== "none";
  const beside = (by) => {
    let here = index + by;
    while (tree[here]?.step === tree[index].step && !seen(here)) here += by;
    return tree[here]?.step === tree[index].step ? here : null;
  };
  const children = tree.flatMap(({ parent }, here) => (parent === index && seen(here) ? [here] : []));
  const moves = { ArrowLeft: () => tree[index].parent, ArrowRight: () => children[0] ?? null,
    ArrowUp: () => beside(-1), ArrowDown: () => beside(1) };
  if (event.key === "Enter" || event.key === " ") chooseCandidate(index);
  else if (!moves[event.key]) return;
  event.preventDefault();
  const target = moves[event.key]?.() ?? null;
  if (target !== null) nodes[target].focus();
});

// All of it

function showSentence() {
  Object.assign(state, { hypothesis: 0, side: "looking", index: 0 });
  showHypotheses();
  showChoices();
  showWords();
  showTree();
}

sentences.forEach(({ text }, index) => {
  at("sentence").append(make("option", { value: index }, `${index + 1}. ${shorter(text, 60)}`));
});
at("sentence-field").hidden = sentences.length < 2;
at("sentence").addEventListener("change", () => {
  state.sentence = Number(at("sentence").value);
  showSentence();
});
showSentence();
