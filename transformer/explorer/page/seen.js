// A picture with what was found in it: words that attend to its patches, or objects in boxes.

const { unit, origin, threshold, records } = contents;
const state = { record: 0, output: 0, threshold };
const record = () => records[state.record];
const output = () => record().outputs[state.output];
const share = (number) => number.toFixed(2);
const isShown = ({ probability }) => probability === undefined || probability >= (state.threshold ?? 0);
let buttons = [], boxes = []; // of each part; null for those that are not shown

// Darkens each patch by how little it is attended to.
function painted(patches) {
  const side = Math.max(1, Math.round(Math.sqrt(patches.length))), most = Math.max(1, ...patches);
  const cover = at("cover");
  Object.assign(cover, { width: side, height: side });
  if (!patches.length) return;
  const pixels = patches.flatMap((weight) => [0, 0, 0, 200 * (1 - Math.sqrt(weight / most))]);
  cover.getContext("2d").putImageData(new ImageData(Uint8ClampedArray.from(pixels), side), 0, 0);
}

function mark(of) {
  output().parts.forEach((_, index) => {
    const [chosen, shade, dim] = of(index);
    buttons[index]?.classList.toggle("chosen", chosen);
    buttons[index]?.style.setProperty("--shade", 0.6 * shade);
    boxes[index]?.classList.toggle("chosen", chosen);
    boxes[index]?.classList.toggle("dim", dim);
  });
}

function show(index) {
  const { text, patches, box, probability } = output().parts[index];
  painted(patches);
  mark((other) => [other === index, 0, other !== index]);
  const { width, height } = record();
  const sides = box?.map((side, which) => (side * (which % 2 ? height : width)).toFixed(1));
  const where = sides ? `left ${sides[0]}, top ${sides[1]}, width ${sides[2]}, height ${sides[3]} pixels` : "";
  const sure = probability === undefined ? "" : `probability ${share(probability)}`;
  const parts = [sure, where].filter(Boolean).join(", ");
  at("readout").textContent = text + (parts ? `: ${parts}` : "");
}

// Shades the words that attend to a patch.
function showPatch(place) {
  const weights = output().parts.map(({ patches }) => patches[place] ?? 0), most = Math.max(1, ...weights);
  mark((index) => [false, Math.sqrt(weights[index] / unit), false]);
  const best = weights.indexOf(most);
  at("readout").textContent = best < 0 ? "" : `${output().parts[best].text} (${share(most / unit)})`;
}

function clear() {
  painted([]);
  mark(() => [false, 0, false]);
  at("readout").textContent = "";
}

function pointed(element, index) {
  element.addEventListener("pointerenter", () => show(index));
  element.addEventListener("pointerleave", clear);
  element.addEventListener("focus", () => show(index));
  element.addEventListener("blur", clear);
  return element;
}

function showParts() {
  const { parts } = output();
  buttons = parts.map((part, index) => {
    if (!isShown(part)) return null;
    const button = make("button", { type: "button", dir: "auto" }, part.text);
    if (part.probability !== undefined) button.append(" ", make("span", { class: "number" }, share(part.probability)));
    return pointed(button, index);
  });
  boxes = parts.map((part, index) => {
    if (!part.box || !isShown(part)) return null;
    const box = make("div", { class: "box" }, make("span", { dir: "auto" }, part.text));
    ["left", "top", "width", "height"].forEach((side, which) => {
      box.style[side] = `${100 * part.box[which]}%`;
    });
    return pointed(box, index);
  });
  at("parts").replaceChildren(...buttons.filter(Boolean));
  if (!buttons.some(Boolean)) at("parts").textContent = "Nothing was found.";
  at("threshold-value").textContent = share(state.threshold ?? 0);
  const { png, title, width, height } = record();
  const picture = at("picture");
  picture.style.aspectRatio = `${width} / ${height}`;
  picture.replaceChildren(make("img", { src: `data:image/png;base64,${png}`, alt: title }),
    make("canvas", { id: "cover" }), ...boxes.filter(Boolean));
  clear();
}

function showRecord() {
  const { reference, outputs } = record();
  at("reference").textContent = reference && `Reference: ${reference}`;
  at("reference").hidden = !reference;
  at("outputs").replaceChildren(at("outputs").querySelector("legend"));
  at("outputs").hidden = outputs.every(({ parts }) => parts.every(({ box }) => box)); // the picture says it
  outputs.forEach(({ text }, index) => {
    const input = make("input", { type: "radio", name: "output", value: index });
    input.checked = index === state.output;
    input.addEventListener("change", () => {
      state.output = index;
      showParts();
    });
    at("outputs").append(make("label", {}, input, make("span", { class: "text", dir: "auto" }, text || "(empty)")));
  });
  showParts();
}

const attends = records.some(({ outputs }) => outputs.some(({ parts }) => parts.some(({ patches }) => patches.length)));
document.title = `Picture explorer: ${origin}`;
at("origin").textContent = origin;
at("help").textContent = attends
  ? "Point at a word, or reach it with Tab, to see the patches that it attends to. Point at a patch to see its words."
  : "Point at an object, or reach it with Tab, to see its box alone.";
at("about").textContent = "The picture as the model reads it."
  + (attends ? " The brightness of a patch is the square root of its attention, the mean over layers and heads." : "");
records.forEach(({ line, title }, index) => at("record").append(make("option", { value: index }, `${line}. ${title}`)));
at("record-field").hidden = records.length < 2;
at("record").addEventListener("change", () => {
  Object.assign(state, { record: Number(at("record").value), output: 0 });
  showRecord();
});
at("threshold-field").hidden = threshold === null;
at("threshold").value = threshold ?? 0;
at("threshold").addEventListener("input", () => {
  state.threshold = Number(at("threshold").value);
  showParts();
});
at("picture").addEventListener("pointermove", ({ clientX, clientY }) => {
  const { patches } = output().parts[0] ?? { patches: [] };
  if (!patches.length) return;
  const side = Math.round(Math.sqrt(patches.length)), frame = at("picture").getBoundingClientRect();
  const [column, row] = [(clientX - frame.left) / frame.width, (clientY - frame.top) / frame.height]
    .map((along) => Math.min(side - 1, Math.max(0, Math.floor(along * side))));
  showPatch(row * side + column);
});
at("picture").addEventListener("pointerleave", clear);
if (records.length) inAddress(
  () => ({ line: records[state.record].line, output: state.output + 1 }),
  ({ line, output: chosen }) => {
    state.record = indexOfLine(records, line);
    state.output = indexOf(chosen, records[state.record].outputs.length);
    at("record").value = state.record;
    showRecord();
  },
);
