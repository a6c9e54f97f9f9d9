"use strict";
// The data of the page, what is chosen of it, and how tokens are written.

const { unit, origin, sentences } = JSON.parse(document.getElementById("data").textContent);
const MEAN = -1; // of all layers, or of all heads
const ALL_KINDS = {
  cross: ["Cross", "Output tokens, each as it is predicted", "Source tokens it attends to"],
  encoder: ["Encoder", "Source tokens", "Source tokens it attends to"],
  decoder: ["Decoder", "Output tokens, each as it is predicted", "Tokens before it that it attends to"],
};
// A language model has no source.
const hasSource = sentences.some(({ source }) => source);
const KINDS = hasSource ? ALL_KINDS : { decoder: ALL_KINDS.decoder };
const state = {
  sentence: 0, hypothesis: 0, kind: Object.keys(KINDS)[0], layer: MEAN, head: MEAN,
  words: false, // subwords joined into words
  side: "queries", index: 0, // the token pinned last
};

const at = (id) => document.getElementById(id);
const sentence = () => sentences[state.sentence];
const hypothesis = () => sentence().hypotheses[state.hypothesis];
const layers = () => (state.kind === "encoder" ? sentence() : hypothesis())[state.kind];

// Text only ever becomes text: no output of a model is read as markup.
function make(name, attributes = {}, ...children) {
  const drawn = ["svg", "g", "rect", "text", "path", "circle", "title"].includes(name);
  const space = drawn ? "http://www.w3.org/2000/svg" : "http://www.w3.org/1999/xhtml";
  const element = document.createElementNS(space, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// SentencePiece marks the beginning of a word with ▁; subword-nmt marks a piece that is continued with @@.
const special = (piece) => /^<\/?s>$/.test(piece);
const plain = (piece) => piece.replace(/^▁|@@$/g, "");
const visible = (text) => ({ "": "␣", " ": "␣", "\n": "⏎", "\t": "⇥" })[text] ?? text;

// Joined pieces; characters that the vocabulary lacks are spelled in bytes, <0xF0><0x9F>...
function joined(pieces) {
  const text = pieces.map(plain).join("");
  return text.replace(/(?:<0x[0-9A-F]{2}>)+/g, (run) => {
    const bytes = run.match(/[0-9A-F]{2}(?=>)/g).map((digits) => parseInt(digits, 16));
    return new TextDecoder().decode(Uint8Array.from(bytes));
  });
}

const isSpaced = (pieces) => pieces.some((piece) => piece.startsWith("▁"));

function beginnings(pieces, spaced = isSpaced(pieces)) {
  return pieces.map((piece, index) => index === 0 || special(piece) || special(pieces[index - 1])
    || (spaced ? piece.startsWith("▁") : !pieces[index - 1].endsWith("@@")));
}

// The pieces of each row or column: one each, or all of a word.
function groupsOf(pieces) {
  const groups = [];
  beginnings(pieces).forEach((begins, index) => {
    if (begins || !state.words) groups.push([index]);
    else groups.at(-1).push(index);
  });
  return groups;
}

// What is written for each group: a piece inside a word begins with a dot, a lone space is an open box.
function labelsOf(pieces) {
  const begins = beginnings(pieces);
  return groupsOf(pieces).map((group) => {
    const several = group.map((index) => pieces[index]);
    return (begins[group[0]] ? "" : "·") + visible(state.words ? joined(several) : plain(several[0]));
  });
}

// Text from pieces, as a reader writes it.
function textOf(pieces) {
  const begins = beginnings(pieces), space = hasSource || isSpaced(pieces) ? " " : "";
  return joined(pieces.map((piece, index) => (begins[index] && index ? space : "") + plain(piece)));
}

function piecesOf(side) {
  if (state.kind === "encoder") return sentence().source;
  if (side === "queries") return hypothesis().target;
  return state.kind === "decoder" ? hypothesis().given : sentence().source;
}

const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);

// Weights [query][key] of one head, or the mean of several. A word's weight as a key is the sum over its
// pieces, as a query the mean (Clark et al. 2019, section 3).
function weightsOf(heads) {
  const queries = groupsOf(piecesOf("queries")), keys = groupsOf(piecesOf("keys"));
  return queries.map((rows) => keys.map((columns) => sum(heads.flatMap((head) =>
    rows.flatMap((i) => columns.map((j) => head[i][j])))) / (heads.length * rows.length * unit)));
}

function chosenWeights() {
  const some = state.layer === MEAN ? layers() : [layers()[state.layer]];
  return weightsOf(some.flatMap((layer) => (state.head === MEAN ? layer : [layer[state.head]])));
}

const shorter = (text, length) => {
  const letters = [...text];
  return letters.length > length ? letters.slice(0, length - 1).join("") + "…" : text;
};
const signed = (number, digits) => number.toFixed(digits).replace("-", "−");
