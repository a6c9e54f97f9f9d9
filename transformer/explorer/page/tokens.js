// How tokens are written, and which of them make a box.

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

// Whether a piece is a byte of the character that begins before it, if all of its bytes are there.
function continuations(pieces) {
  const bytes = pieces.map((piece) => Number(/^<(0x[0-9A-F]{2})>$/.exec(piece)?.[1] ?? -1));
  const inside = pieces.map(() => false);
  bytes.forEach((byte, index) => {
    const length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
    const rest = bytes.slice(index + 1, index + length);
    if (rest.length === length - 1 && rest.every((other) => other >> 6 === 2)) inside.fill(true, index + 1, index + length);
  });
  return inside;
}

// The pieces of each row or column: one each, but all bytes of a character, or all of a word.
function groupsOf(pieces) {
  const groups = [], begins = beginnings(pieces), continues = continuations(pieces);
  pieces.forEach((_, index) => {
    if (index && (state.words ? !begins[index] : continues[index])) groups.at(-1).push(index);
    else groups.push([index]);
  });
  return groups;
}

// Bytes that are no whole character, and signs that nobody sees, stay as they are spelled.
const UNWRITABLE = /[\ufffd\u0000-\u0008\u000b-\u001f]/;

// What is written for each group: a piece inside a word begins with a dot, a lone space is an open box.
function labelsOf(pieces) {
  const begins = beginnings(pieces);
  return groupsOf(pieces).map((group) => {
    const several = group.map((index) => pieces[index]), text = joined(several);
    return (begins[group[0]] ? "" : "·") + visible(UNWRITABLE.test(text) ? several.map(plain).join("") : text);
  });
}

const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);

// Weights [query][key] of one head, or the mean of several. A word's weight as a key is the sum over its
// pieces, as a query the mean (Clark et al. 2019, section 3).
function weightsOf(heads) {
  const queries = groupsOf(piecesOf("queries")), keys = groupsOf(piecesOf("keys"));
  return queries.map((rows) => keys.map((columns) => sum(heads.flatMap((head) =>
    rows.flatMap((i) => columns.map((j) => head[i][j])))) / (heads.length * rows.length * unit)));
}

// The direction of a text is that of its first letter.
const RIGHT_TO_LEFT = /^\P{L}*[\p{Script=Arabic}\p{Script=Hebrew}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}]/u;
const directionOf = (text) => (RIGHT_TO_LEFT.test(text) ? "rtl" : "ltr");
