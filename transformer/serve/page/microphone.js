// Sends what a microphone hears while someone speaks, and shows the words as they come.

let stopListening = null;

at("listen").addEventListener("click", async () => {
  if (stopListening) return stopListening();
  stop();
  clearOutputs(1);
  at("count").hidden = false;
  at("listen").disabled = true;
  try {
    await listen();
  } catch (error) {
    fail(`${error.message}: the browser gives no microphone; it needs your permission, and HTTPS or localhost.`);
  }
  at("listen").disabled = false;
});

async function listen() {
  if (!navigator.mediaDevices) throw new Error("not a secure page");
  const stream = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1 } });
  const context = new AudioContext();
  const address = new URL("/listen", location.href);
  address.protocol = address.protocol.replace("http", "ws");
  const socket = new WebSocket(address);
  // Deprecated, but a worklet would be a second file, which the policy of this page does not allow.
  const processor = context.createScriptProcessor(4096, 1, 1);
  let isReleased = false;
  const release = () => {
    if (isReleased) return;
    isReleased = true;
    stream.getTracks().forEach((track) => track.stop());
    processor.disconnect();
    if (context.state !== "closed") context.close();
    showState(null);
  };
  socket.onopen = () => {
    const asked = { model: model().name, token: at("token").value, rate: Math.round(context.sampleRate), step: 0.5 };
    socket.send(JSON.stringify(asked));
    processor.onaudioprocess = (event) => {
      if (socket.readyState !== WebSocket.OPEN || socket.bufferedAmount > 2 ** 22) return;
      socket.send(samples(event.inputBuffer.getChannelData(0)));
    };
    context.createMediaStreamSource(stream).connect(processor);
    processor.connect(context.destination); // else nothing is processed; its output is silent
    showState(() => {
      release();
      socket.send("end"); // the last words follow
    });
  };
  const final = document.createTextNode("");
  const tentative = make("span", { class: "tentative" });
  outputs[0].element.replaceChildren(final, tentative);
  socket.onmessage = ({ data }) => {
    const heard = JSON.parse(data);
    if (heard.error) fail(asSentence(heard.error));
    else {
      final.data += heard.final;
      tentative.textContent = heard.tentative && ` ${heard.tentative}`;
      at("copy").disabled = false;
      at("count").textContent = `${heard.seconds.toFixed(1)} s`;
    }
  };
  socket.onerror = () => fail(SILENT);
  socket.onclose = release;
}

function showState(stop) {
  stopListening = stop;
  at("listen").setAttribute("aria-pressed", stop !== null);
  at("listen").textContent = stop ? "Stop listening" : "Listen to the microphone";
}

// As 16 bits, little-endian.
function samples(wave) {
  const view = new DataView(new ArrayBuffer(2 * wave.length));
  wave.forEach((value, index) => view.setInt16(2 * index, Math.max(-1, Math.min(1, value)) * 32767, true));
  return view.buffer;
}
