// Words that are probably wrong.

const DOUBTFUL = 0.7, UNLIKELY = 0.4; // word confidences below which words are marked

// The text, with words marked that are probably wrong, if the run knows the confidence of each.
function marked(text, words) {
  const letters = [...text]; // positions count characters, not UTF-16 units
  let end = 0;
  const parts = (words ?? []).flatMap(({ word, start, confidence }) => {
    const gap = letters.slice(end, start).join("");
    end = start + [...word].length;
    const mark = confidence < UNLIKELY ? "unlikely" : confidence < DOUBTFUL ? "doubtful" : "";
    return [gap, make("span", { class: mark, title: `right with probability ${confidence.toFixed(2)}` }, word)];
  });
  return [...parts, letters.slice(end).join("")];
}
