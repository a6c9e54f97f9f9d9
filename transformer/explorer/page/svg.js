// Saves a picture of the page as a file, with the colours and fonts that it has here.

const DRAWN = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-family", "font-size",
  "font-weight", "text-anchor"];

// Other programs do not know the colours that a browser mixes.
const plainColour = (value) => value.replace(/color\(srgb ([^/)]+)(?:\/[^)]*)?\)/,
  (_, numbers) => `rgb(${numbers.trim().split(" ").map((share) => Math.round(255 * share)).join(", ")})`);

function asFile(svg) {
  const copy = svg.cloneNode(true), originals = [svg, ...svg.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((element, index) => {
    const style = getComputedStyle(originals[index]);
    for (const name of DRAWN) element.setAttribute(name, plainColour(style.getPropertyValue(name)));
    for (const name of ["class", "style", "tabindex", "role", "aria-label", "data-index"]) element.removeAttribute(name);
  });
  const surface = getComputedStyle(document.documentElement).getPropertyValue("--surface").trim();
  copy.prepend(make("rect", { width: "100%", height: "100%", fill: surface }));
  return new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" });
}

for (const button of document.querySelectorAll("button.save")) {
  button.addEventListener("click", () => {
    const address = URL.createObjectURL(asFile(at(button.dataset.of).querySelector("svg")));
    make("a", { href: address, download: `${button.dataset.name}.svg` }).click();
    setTimeout(() => URL.revokeObjectURL(address), 10_000);
  });
}
