// Terms that translations must have: those of the glossary whose entries a line has.

const WITHOUT_SPACES = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}\p{Script=Khmer}\p{Script=Lao}]/u;

// What finds a term in a text: as whole words, in any case.
function pattern(term) {
  const exact = term.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&");
  const isWord = !WITHOUT_SPACES.test(term);
  return new RegExp(isWord ? `(?<![\\p{L}\\p{N}])${exact}(?![\\p{L}\\p{N}])` : exact, "giu");
}

// [term, translation] of each entry, longer terms first. An entry without = is for every line.
function entries() {
  if (at("glossary-field").hidden) return [];
  const pairs = at("glossary").value.split("\n").filter((line) => line.trim()).map((line) => {
    const [, term, translation] = line.match(/^(.*?)[=\t](.*)$/) ?? ["", "", line];
    return [term.trim(), translation.trim()];
  });
  return pairs.filter(([, translation]) => translation).sort(([one], [other]) => other.length - one.length);
}

function termsOf(line) {
  let rest = line;
  return entries().flatMap(([term, translation]) => {
    if (!term) return [translation];
    const count = (rest.match(pattern(term)) ?? []).length;
    rest = rest.replace(pattern(term), "\n"); // no shorter entry is found there
    return Array(count).fill(translation);
  });
}
