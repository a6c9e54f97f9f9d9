// The runs of the server: their languages, and what is shown for each.

const { models, limits, hasToken } = contents;
const model = () => models[at("model").selectedIndex];
const endpoint = () => model().endpoints[0];
const TAKES_FILE = { "/transcribe": "audio/*", "/caption": "image/png", "/detect": "image/png" };
const VERBS = { "/generate": "Continue", "/tag": "Label", "/transcribe": "Transcribe", "/caption": "Describe", "/detect": "Detect" };
const languageNames = new Intl.DisplayNames(["en"], { type: "language" });

function nameOf(code) {
  try {
    return languageNames.of(code.replaceAll("_", "-"));
  } catch {
    return code; // that of a publisher, which is no code of a language
  }
}

const isOfMany = () => Boolean(model().languages?.length);

// The codes of source and target; null if they are unknown.
function languages() {
  if (isOfMany()) return [at("from").value, at("to").value];
  return [model().source_language, model().target_language];
}

// The index of the model for the other direction; -1 if there is none.
function reversed() {
  if (isOfMany()) return at("model").selectedIndex;
  const [source, target] = languages();
  if (!source || !target) return -1;
  return models.findIndex((other) => other.source_language === target && other.target_language === source);
}

for (const { name, source_language: source, target_language: target } of models) {
  at("model").append(make("option", {}, source && target ? `${nameOf(source)} → ${nameOf(target)} (${name})` : name));
}

function showModel() {
  const type = TAKES_FILE[endpoint()], count = model().outputs, many = isOfMany();
  at("text").hidden = at("count").hidden = Boolean(type);
  at("count").textContent = "";
  at("recording").hidden = !type;
  if (type) at("recording").accept = type;
  at("recording").value = "";
  at("send").textContent = VERBS[endpoint()] ?? (model().translates ? "Translate" : "Send");
  at("listen").hidden = !model().endpoints.includes("/listen");
  at("from-field").hidden = at("to-field").hidden = !many;
  if (many) showLanguages();
  at("n-best").replaceChildren(...Array.from({ length: count }, (_, index) => make("option", {}, String(index + 1))));
  at("count-field").hidden = count < 2;
  at("glossary-field").hidden = endpoint() !== "/translate" || !model().options.includes("terms");
  at("options").hidden = at("count-field").hidden && at("glossary-field").hidden;
  document.title = `transformer: ${model().name}`;
  showDirection();
}

// English to the reader's language first, as far as the model has them.
function showLanguages() {
  const codes = [...model().languages].sort((one, other) => nameOf(one).localeCompare(nameOf(other)));
  const isIn = (code, language) => nameOf(code).startsWith(nameOf(language.slice(0, 2)));
  const source = codes.find((code) => isIn(code, "en")) ?? codes[0];
  const others = codes.filter((code) => code !== source);
  const target = others.find((code) => isIn(code, navigator.language)) ?? others[0] ?? source;
  for (const [id, chosen] of [["from", source], ["to", target]]) {
    at(id).replaceChildren(...codes.map((code) => make("option", { value: code }, nameOf(code))));
    at(id).value = chosen;
  }
}

function showDirection() {
  const [source, target] = languages();
  for (const [id, name, code] of [["text", "Input", source], ["output", "Output", target]]) {
    at(id === "text" ? "input-title" : "output-title").textContent = code ? nameOf(code) : name;
    at(id).lang = code?.replaceAll("_", "-") ?? "";
  }
  at("swap").hidden = reversed() < 0;
}
