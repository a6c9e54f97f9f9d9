"use strict";
// Sends what is typed, and shows the answer as it comes. Text only ever becomes text.

const models = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);
let sending = null;

function make(name, attributes, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

const model = () => models[at("model").selectedIndex];
const endpoint = () => model().endpoints[0];

// What is sent to endpoints that take a file.
const files = { "/transcribe": "audio/*", "/caption": "image/png", "/detect": "image/png" };

for (const { name } of models) at("model").append(make("option", {}, name));
function showModel() {
  const type = files[endpoint()];
  at("text").hidden = Boolean(type);
  at("recording").hidden = !type;
  if (type) at("recording").accept = type;
  at("listen").hidden = !model().endpoints.includes("/listen");
  document.title = `transformer: ${model().name}`;
}
at("model").addEventListener("change", showModel);
showModel();

function request(signal) {
  const headers = at("token").value ? { Authorization: `Bearer ${at("token").value}` } : {};
  if (files[endpoint()]) {
    const query = new URLSearchParams({ model: model().name, stream: true });
    return [`${endpoint()}?${query}`, { method: "POST", headers, body: at("recording").files[0], signal }];
  }
  const asked = { model: model().name, text: at("text").value, stream: true };
  if (model().alignments) asked.alignments = true;
  if (model().extras?.includes("word_confidences")) asked.word_confidences = true;
  headers["Content-Type"] = "application/json";
  return [endpoint(), { method: "POST", headers, body: JSON.stringify(asked), signal }];
}

// Yields server-sent events: [name, data].
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const [, name, data] = block.match(/^event: (\w+)\ndata: (.*)$/);
      yield [name, JSON.parse(data)];
    }
  }
}

at("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  sending?.abort(); // what was asked before is cancelled
  stopListening?.();
  const own = sending = new AbortController();
  at("output").textContent = "";
  at("note").textContent = "";
  at("attention").hidden = true;
  at("output").classList.add("growing");
  try {
    const response = await fetch(...request(own.signal));
    if (!response.ok) throw new Error((await response.json()).error);
    for await (const [name, data] of events(response.body)) {
      if (sending !== own) return;
      if (name === "partial") at("output").textContent = data.text;
      if (name === "output") show(data);
      if (name === "error") throw new Error(data.error);
    }
  } catch (error) {
    if (error.name !== "AbortError") at("note").textContent = error.message;
  } finally {
    if (sending === own) at("output").classList.remove("growing");
  }
});

function show({ hypotheses, source_tokens: sources, words, labels, objects }) {
  if (words) at("output").textContent = words.map((word, index) => `${word}/${labels[index]}`).join(" ");
  if (objects) at("output").textContent = objects.map((found) => Object.values(found).join(" ")).join("\n") || "nothing";
  if (!hypotheses) return;
  const [best] = hypotheses;
  at("output").replaceChildren(...marked(best.text, best.word_confidences));
  const truncated = best.truncated ? "; only the part was read that the model can read at once" : "";
  at("note").textContent = `log P ${best.log_probability.toFixed(2)}${truncated}`;
  if (best.alignment && sources) showAlignment([...best.tokens, "</s>"], [...sources, "</s>"], best.alignment);
}

function showAlignment(targets, sources, weights) {
  const buttons = (tokens) => tokens.map((token) => make("button", { type: "button", class: "word" },
    make("span", { class: "piece" }, token.replace(/^▁|@@$/g, "") || "␣"), make("span", { class: "number" })));
  const sides = { targets: buttons(targets), sources: buttons(sources) };
  const columns = sources.map((_, column) => weights.map((row) => row[column]));
  const point = (side, index) => {
    const other = side === "targets" ? "sources" : "targets";
    const found = side === "targets" ? weights[index] : columns[index];
    sides[side].forEach((button, place) => shade(button, null, place === index));
    sides[other].forEach((button, place) => shade(button, found[place], false));
  };
  for (const [side, some] of Object.entries(sides)) {
    some.forEach((button, index) => {
      for (const name of ["pointerenter", "focus", "click"]) {
        button.addEventListener(name, () => point(side, index));
      }
    });
    at(side).replaceChildren(...some);
  }
  at("attention").hidden = false;
  point("targets", 0);
}

function shade(button, weight, isChosen) {
  const amount = Math.sqrt(weight ?? 0);
  button.style.setProperty("--shade", amount.toFixed(3));
  button.classList.toggle("middling", amount > 0.55);
  button.classList.toggle("strong", amount > 0.75);
  button.classList.toggle("chosen", isChosen);
  button.querySelector(".number").textContent = weight === null ? "" : weight.toFixed(2);
}
