// The data of the page, and what is chosen of it.

const { unit, origin, sentences } = contents;
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

const sentence = () => sentences[state.sentence];
const hypothesis = () => sentence().hypotheses[state.hypothesis];
const layers = () => (state.kind === "encoder" ? sentence() : hypothesis())[state.kind];

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

function chosenWeights() {
  const some = state.layer === MEAN ? layers() : [layers()[state.layer]];
  return weightsOf(some.flatMap((layer) => (state.head === MEAN ? layer : [layer[state.head]])));
}

const shorter = (text, length) => {
  const letters = [...text];
  return letters.length > length ? letters.slice(0, length - 1).join("") + "…" : text;
};
