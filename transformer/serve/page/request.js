// Requests, and in one sentence what became of them.

const PATIENCE = 5000; // milliseconds in which a server answers that is well
const SILENT = "The server does not answer.";
const pause = (milliseconds) => new Promise((resolve) => { setTimeout(resolve, milliseconds); });
const strange = (status) => `The answer is no JSON (status ${status}): something before the server may have sent it.`;

// Errors of the network have no sentence for readers, and each browser has another one.
const plainly = (error) => (error.name === "AbortError" ? error : new Error(SILENT));

async function ask(address, options) {
  try {
    return await fetch(address, options);
  } catch (error) {
    throw plainly(error);
  }
}

// Why a request was refused.
async function refusalOf(response) {
  try {
    const { error } = JSON.parse(await response.text());
    if (error) return error;
  } catch (error) {
    if (error.name === "AbortError") throw error;
  }
  return strange(response.status);
}

// Yields server-sent events: [name, data]. An answer that ends before the event `done` is not whole.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read().catch((error) => { throw plainly(error); });
    if (done) throw new Error(rest ? strange(response.status) : "The answer ended early: send the text again.");
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const [name, data] = eventOf(block, response.status);
      if (name === "done") return;
      yield [name, data];
    }
  }
}

function eventOf(block, status) {
  const [, name, data] = block.match(/^event: (\w+)\ndata: (.*)$/) ?? [];
  try {
    return [name, JSON.parse(data)];
  } catch {
    throw new Error(strange(status));
  }
}

// A server that was stopped keeps its connections and is silent: it is asked for its health now and then.
async function watch(isAwaited, tell) {
  for (;;) {
    await pause(PATIENCE);
    if (!isAwaited()) return;
    const health = await ask("/health", { signal: AbortSignal.timeout(PATIENCE) }).catch(() => null);
    if (isAwaited()) tell(health ? "" : SILENT);
  }
}
