// Options are found as they are written. The search takes a leading dash as "not", and any word of a query as enough:
// --data.max-length becomes +data.max* +length* data.max_length*^100, the last being its name in Python.
{
  const QUERY = 2; // the type of the theme's messages
  const isOption = /^-{1,2}[a-z]|^[a-z_]+\.[a-z_.]*-/i;
  const asQuery = (word) => {
    if (!isOption.test(word)) return word;
    const name = word.replace(/^-+/, "").replace(/=.*/, "").replace(/-+$/, "").toLowerCase();
    const words = name.split("-").map((each) => `+${each}*`);
    return [...words, `${name.replaceAll("-", "_")}*^100`].join(" ");
  };
  const post = Worker.prototype.postMessage;
  Worker.prototype.postMessage = function (message, ...rest) {
    if (message?.type === QUERY) message = { ...message, data: message.data.split(/\s+/).map(asQuery).join(" ") };
    return post.call(this, message, ...rest);
  };
}
