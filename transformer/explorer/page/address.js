// What is chosen is in the address: a reload, or a link to it, shows the same.

// read gives what is chosen, by names; choose takes texts by names, which may be those of another page.
function inAddress(read, choose) {
  const remember = () => {
    try {
      history.replaceState(null, "", `#${new URLSearchParams(read())}`);
    } catch { // a frame of a notebook has no address
    }
  };
  const recall = () => choose(Object.fromEntries(new URLSearchParams(location.hash.slice(1))));
  recall();
  addEventListener("hashchange", recall);
  for (const kind of ["change", "click", "focusin"]) addEventListener(kind, () => setTimeout(remember));
}

// The index of a number in an address that counts from 1; the other index if it is none of them.
function indexOf(text, count, other = 0) {
  const index = Number(text) - 1;
  return Number.isInteger(index) && index >= 0 && index < count ? index : other;
}

// The index of the record of a line.
const indexOfLine = (records, text) => Math.max(0, records.findIndex(({ line }) => String(line) === text));
