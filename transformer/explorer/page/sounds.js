// A spectrogram above the attention of each token, on the same scale of time.

const { unit, origin, stride, records } = contents;
const state = { record: 0, output: 0 };
const output = () => records[state.record].outputs[state.output];
const time = (seconds) => `${seconds.toFixed(2)} s`;
let end = Infinity; // where the sound stops, in seconds

function colour() {
  const accent = getComputedStyle(document.documentElement).getPropertyValue("--accent").trim();
  return [1, 3, 5].map((digit) => parseInt(accent.slice(digit, digit + 2), 16));
}

// A pixel for each position; the last one may reach beyond the end of the sound.
function painted(canvas, pixels) {
  const whole = Math.max(1, Math.round(output().seconds * 100)), each = Math.round(stride * 100);
  Object.assign(canvas, { width: whole, height: 1 });
  const image = Array.from({ length: whole }, (_, frame) => pixels[Math.floor(frame / each)] ?? [0, 0, 0, 0]);
  canvas.getContext("2d").putImageData(new ImageData(Uint8ClampedArray.from(image.flat()), whole), 0, 0);
}

function partOf(token) {
  const span = output().spans[token];
  return span && [span[0] * stride, Math.min(span[1] * stride, output().seconds)];
}

function show(token) {
  const { tokens, attention, spans } = output(), [first, after] = spans[token] ?? [0, 0];
  const dim = attention[token].map((_, place) => [0, 0, 0, place >= first && place < after ? 0 : 170]);
  painted(at("cover"), spans.length ? dim : []);
  mark((other) => [other === token, 0]);
  const part = partOf(token), peak = attention[token].indexOf(Math.max(...attention[token]));
  at("readout").textContent = `${tokens[token]}: `
    + (part ? `${time(part[0])} to ${time(part[1])}, ` : "")
    + (peak < 0 ? "no sound" : `most attention at ${time(peak * stride)}`);
}

function showMoment(place) {
  const { tokens, attention } = output(), most = Math.max(1, ...attention.map((row) => row[place]));
  mark((token) => [false, Math.sqrt(attention[token][place] / unit)]);
  const best = attention.findIndex((row) => row[place] === most);
  at("readout").textContent = `${time(place * stride)}: `
    + (best < 0 ? "no token" : `${tokens[best]} (${(most / unit).toFixed(2)})`);
}

function mark(of) {
  at("tracks").querySelectorAll("button").forEach((button, token) => {
    const [chosen, shade] = of(token);
    button.classList.toggle("chosen", chosen);
    button.style.setProperty("--shade", 0.6 * shade);
  });
}

function clear() {
  painted(at("cover"), []);
  mark(() => [false, 0]);
  at("readout").textContent = "";
}

function play(token) {
  const part = partOf(token), audio = at("audio");
  if (!part) return;
  [audio.currentTime, end] = part;
  audio.play();
}

function showTracks() {
  const { tokens, attention, seconds, png } = output();
  const sound = make("div", { class: "sound" }, make("canvas", { id: "cover" }));
  if (png) sound.prepend(make("img", { src: `data:image/png;base64,${png}`, alt: "Mel spectrogram" }));
  sound.addEventListener("pointermove", (event) => {
    const box = sound.getBoundingClientRect();
    const place = Math.floor((event.clientX - box.left) / box.width * seconds / stride);
    if (attention.length && place >= 0 && place < attention[0].length) showMoment(place);
  });
  sound.addEventListener("pointerleave", clear);
  const marks = [0, 0.25, 0.5, 0.75, 1].map((share) => make("span", {}, time(share * seconds)));
  at("tracks").replaceChildren(make("span"), sound, make("span"), make("div", { class: "scale" }, ...marks));
  const accent = colour();
  tokens.forEach((piece, token) => {
    const button = make("button", { type: "button" }, piece), track = make("canvas", { class: "track" });
    painted(track, attention[token].map((weight) => [...accent, 255 * Math.sqrt(weight / unit)]));
    for (const each of [button, track]) {
      each.addEventListener("pointerenter", () => show(token));
      each.addEventListener("pointerleave", clear);
      each.addEventListener("click", () => play(token));
    }
    button.addEventListener("focus", () => show(token));
    button.addEventListener("blur", clear);
    at("tracks").append(button, track);
  });
  clear();
}

function showOutput() {
  end = Infinity;
  at("audio").src = `data:audio/wav;base64,${output().wav}`;
  showTracks();
}

function showRecord() {
  const { title, outputs } = records[state.record];
  at("source-text").textContent = title;
  at("outputs").replaceChildren(at("outputs").querySelector("legend"));
  outputs.forEach(({ text }, index) => {
    const input = make("input", { type: "radio", name: "output", value: index });
    input.checked = index === state.output;
    input.addEventListener("change", () => {
      state.output = index;
      showOutput();
    });
    at("outputs").append(make("label", {}, input, make("span", { class: "text", dir: "auto" }, text || "(empty)")));
  });
  showOutput();
}

document.title = `Sound explorer: ${origin}`;
at("origin").textContent = origin;
records.forEach(({ line, title }, index) => at("record").append(make("option", { value: index }, `${line}. ${title}`)));
at("record-field").hidden = records.length < 2;
at("record").addEventListener("change", () => {
  Object.assign(state, { record: Number(at("record").value), output: 0 });
  showRecord();
});
at("audio").addEventListener("timeupdate", () => {
  if (at("audio").currentTime < end) return;
  at("audio").pause();
  end = Infinity;
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showTracks);
if (records.length) inAddress(
  () => ({ line: records[state.record].line, output: state.output + 1 }),
  ({ line, output: chosen }) => {
    state.record = indexOfLine(records, line);
    state.output = indexOf(chosen, records[state.record].outputs.length);
    at("record").value = state.record;
    showRecord();
  },
);
