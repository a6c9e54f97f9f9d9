// What happens, in words, and whether the server is ready.

const say = (text) => { at("status").textContent = text; };
const fail = (text) => { if (at("error").textContent !== text) at("error").textContent = text; };
const answersAgain = () => { if (at("error").textContent === SILENT) fail(""); };
const asSentence = (text) => text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");

let isAsking = false;

// Asks until it is. The server says when to ask again; if it does not, it never will be.
async function awaitReady() {
  if (isAsking) return;
  isAsking = true;
  for (let seconds = 1, hasWaited = false; seconds; hasWaited = true) {
    seconds = await secondsToWait();
    at("send").disabled = at("listen").disabled = seconds !== 0;
    if (seconds === 0 && hasWaited) say("Ready.");
    if (seconds) await pause(1000 * seconds);
  }
  isAsking = false;
}

// Until the server is asked again: 0 if it is ready, NaN if it never will be.
async function secondsToWait() {
  const response = await ask("/ready", { signal: AbortSignal.timeout(PATIENCE) }).catch(() => null);
  if (!response) {
    say("");
    fail(SILENT);
    return PATIENCE / 1000;
  }
  answersAgain();
  if (response.ok) return 0;
  const reason = asSentence(await refusalOf(response)), seconds = Number(response.headers.get("Retry-After") ?? NaN);
  if (seconds) say(reason); else fail(reason);
  return seconds;
}
awaitReady();
