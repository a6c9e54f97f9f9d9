// Sends what is typed, line by line, and shows the answer as it comes.

let sending = null; // what ends the request that is answered now

function stop(text = "") {
  sending?.abort();
  sending = null;
  showWork(false);
  say(text);
  fail("");
}

function showWork(isWorking) {
  at("stop").hidden = !isWorking;
  at("output").classList.toggle("growing", isWorking);
  at("output").setAttribute("aria-busy", isWorking);
}

// The lines of the text, by their number; a prompt is one, with its line breaks.
function linesOf(text) {
  return endpoint() === "/generate" ? [text] : text.split("\n");
}

// Lines in requests: as many as one may have, all with the same terms.
function requestsOf(lines) {
  const requests = [];
  lines.forEach((line, number) => {
    if (!line.trim()) return;
    const terms = termsOf(line), last = requests.at(-1);
    const fits = last && last.numbers.length < limits.texts && JSON.stringify(last.terms) === JSON.stringify(terms);
    if (fits) last.numbers.push(number);
    else requests.push({ numbers: [number], terms });
  });
  return requests;
}

const headers = () => (at("token").value ? { Authorization: `Bearer ${at("token").value}` } : {});

function sent(lines, { numbers, terms }, signal) {
  const { name, alignments, extras = [], context } = model();
  const fields = { model: name, stream: true, n_best: Number(at("n-best").value) || 1 };
  if (TAKES_FILE[endpoint()]) {
    const query = new URLSearchParams(fields);
    return [`${endpoint()}?${query}`, { method: "POST", headers: headers(), body: at("recording").files[0], signal }];
  }
  fields.text = numbers.map((number) => lines[number]);
  if (alignments) fields.alignments = true;
  if (extras.includes("word_confidences")) fields.word_confidences = true;
  if (terms.length) fields.terms = terms;
  if (context) {
    const before = (number) => lines.slice(0, number).filter((line) => line.trim()).slice(-context);
    fields.context = numbers.map(before);
  }
  if (isOfMany()) [fields.source_language, fields.target_language] = languages();
  const json = { ...headers(), "Content-Type": "application/json" };
  return [endpoint(), { method: "POST", headers: json, body: JSON.stringify(fields), signal }];
}

async function send(own) {
  const isFile = Boolean(TAKES_FILE[endpoint()]), lines = isFile ? [""] : linesOf(at("text").value);
  const requests = isFile ? [{ numbers: [0] }] : requestsOf(lines);
  const isOne = lines.length === 1, named = (number) => (isOne ? "" : `line ${number + 1}: `);
  clearOutputs(lines.length);
  const cut = [], start = performance.now();
  for (const request of requests) {
    const { numbers } = request, response = await ask(...sent(lines, request, own.signal));
    if (!response.ok) {
      if (response.status === 503) awaitReady();
      const reason = await refusalOf(response);
      throw new Error(reason.replace(/^text (\d+): /, (_, place) => named(numbers[place - 1])));
    }
    for await (const [name, data] of events(response)) {
      if (sending !== own) return;
      answersAgain();
      const number = numbers[data.index];
      if (name === "partial") outputs[number].element.textContent = data.text;
      if (name === "output") finish(number, data);
      if (name === "output" && data.hypotheses?.[0].truncated) cut.push(number);
      if (name === "error") fail(asSentence(named(number) + data.error));
    }
  }
  const seconds = `Done in ${((performance.now() - start) / 1000).toFixed(1)} s.`;
  const where = isOne ? "" : ` of line ${cut.map((number) => number + 1).join(", ")}`;
  say(cut.length ? `${seconds} Only the part${where} was read that the model can read at once.` : seconds);
}

at("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  stop(); // what was asked before is cancelled
  stopListening?.();
  const isFile = Boolean(TAKES_FILE[endpoint()]), input = at(isFile ? "recording" : "text");
  if (isFile ? !input.files.length : !input.value.trim()) {
    say(isFile ? "Choose a file first." : "Write a text first.");
    return input.focus();
  }
  const own = sending = new AbortController();
  showWork(true);
  say("Working ...");
  watch(() => sending === own, fail);
  try {
    await send(own);
  } catch (error) {
    if (sending !== own) return;
    say("");
    fail(asSentence(error.message));
    if (error.message === SILENT) awaitReady();
  } finally {
    if (sending === own) {
      sending = null;
      showWork(false);
    }
  }
});

at("stop").addEventListener("click", () => {
  stop("Stopped.");
  at("send").focus();
});

at("form").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !at("send").disabled) at("form").requestSubmit();
});

function showCount() {
  const lines = linesOf(at("text").value);
  if (lines.length > 1 && !lines.at(-1)) lines.pop();
  const longest = Math.max(...lines.map((line) => [...line].length));
  const size = `${longest.toLocaleString("en")} of ${limits.characters.toLocaleString("en")} characters`;
  at("count").textContent = lines.length > 1 ? `${lines.length.toLocaleString("en")} lines, the longest ${size}` : size;
  at("count").classList.toggle("over", longest > limits.characters);
  at("text").setAttribute("aria-invalid", longest > limits.characters);
}

// Of another model, or of another direction: no output stays that looks like one of it.
function chooseModel() {
  stop();
  stopListening?.();
  clearOutputs();
}

function typed(text) {
  at("text").value = text;
  showCount();
}

at("text").addEventListener("input", showCount);
at("model").addEventListener("change", () => {
  chooseModel();
  showModel();
  showCount();
});
for (const id of ["from", "to"]) {
  at(id).addEventListener("change", () => {
    chooseModel();
    showDirection();
  });
}
at("swap").addEventListener("click", () => {
  const [source, target] = languages(), text = outputText();
  at("model").selectedIndex = reversed();
  chooseModel();
  if (text.trim()) typed(text);
  showModel();
  if (isOfMany()) {
    [at("from").value, at("to").value] = [target, source];
    showDirection();
  }
});
at("clear").addEventListener("click", () => {
  chooseModel();
  at("recording").value = "";
  typed("");
  at("text").focus();
});
at("copy").hidden = !navigator.clipboard; // browsers have none for pages without HTTPS
at("copy").addEventListener("click", async () => {
  await navigator.clipboard.writeText(outputText());
  say("Copied.");
});
at("token-field").hidden = !hasToken;
showModel();
showCount();
