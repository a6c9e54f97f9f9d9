// All weights of the chosen head as a map, and a small map of every layer and head to choose from.

const LARGEST_MAP = 10_000; // cells: a larger one can neither be read nor drawn in time
const LARGEST_GRID = 4_000_000;
let cell = 26, left = 0, above = 0; // the side of a cell, and the room for labels, in pixels

// Cells shrink until the map fits the page; below six pixels it scrolls.
function measure(columns) {
  const room = at("map").clientWidth - 10;
  left = Math.min(118, Math.floor(room * 0.3));
  const overhang = 0.09 * Math.min(room, 800); // of the last slanted label
  cell = Math.max(6, Math.min(26, Math.floor((room - left - overhang) / columns)));
  if (cell < 18) cell = Math.max(6, Math.min(17, Math.floor((room - left) / columns))); // upright labels
}

function showMap() {
  const rows = labelsOf(piecesOf("queries")), columns = labelsOf(piecesOf("keys"));
  at("map-part").hidden = rows.length * columns.length > LARGEST_MAP;
  if (at("map-part").hidden || !at("map").clientWidth) return at("map").replaceChildren();
  measure(columns.length);
  const size = Math.max(6, Math.min(14, cell - 1)), slanted = cell >= 18;
  above = slanted ? 86 : Math.ceil(12 * size * 0.62) + 10;
  const width = left + columns.length * cell + (slanted ? 72 : 2), height = above + rows.length * cell + 4;
  const svg = make("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Weights: a row for each query" });
  columns.forEach((label, j) => {
    const x = left + (j + 0.5) * cell + (slanted ? 2 : size * 0.35);
    const transform = `translate(${x} ${above - 6}) rotate(${slanted ? -48 : -90})`;
    svg.append(make("text", { "font-size": size, transform }, shorter(label, 12)));
  });
  const letters = Math.floor((left - 8) / (size * 0.64));
  rows.forEach((label, i) => {
    const y = above + i * cell;
    const before = { x: left - 8, y: y + (cell + size * 0.7) / 2, "font-size": size, "text-anchor": "end" };
    svg.append(make("text", before, shorter(label, letters)));
    columns.forEach((other, j) => {
      const box = { x: left + j * cell, y, width: cell - 1, height: cell - 1, rx: cell > 12 ? 2 : 0 };
      const rect = make("rect", { class: "cell", ...box },
        make("title", {}, `${label} → ${other}: ${weights[i][j].toFixed(4)}`));
      shade(rect, weights[i][j]);
      rect.addEventListener("pointerenter", () => show("queries", i));
      rect.addEventListener("click", () => pin("queries", i));
      svg.append(rect);
    });
  });
  svg.addEventListener("pointerleave", () => show(state.side, state.index));
  svg.append(make("rect", { class: "band", rx: 3 }));
  at("map").replaceChildren(svg);
}

function markMap(side, index) {
  const band = at("map").querySelector(".band");
  if (!band) return;
  const across = side === "queries", rows = weights.length * cell, columns = weights[0].length * cell;
  const box = { x: left - 1 + (across ? 0 : index * cell), y: above - 1 + (across ? index * cell : 0),
    width: (across ? columns : cell) + 1, height: (across ? cell : rows) + 1 };
  for (const [key, value] of Object.entries(box)) band.setAttribute(key, value);
}

let room = 0; // the map's width when it was last drawn
new ResizeObserver(() => {
  if (at("map").clientWidth === room) return;
  room = at("map").clientWidth;
  showMap();
  markMap(state.side, state.index);
}).observe(at("map"));

function showGrid() {
  const rows = groupsOf(piecesOf("queries")).length, columns = groupsOf(piecesOf("keys")).length;
  const heads = layers()[0].length;
  at("grid-part").hidden = layers().length * heads * rows * columns > LARGEST_GRID;
  if (at("grid-part").hidden) return;
  at("grid").style.setProperty("--heads", heads);
  at("grid").replaceChildren(make("span"),
    ...layers()[0].map((_, head) => make("span", { class: "column" }, `head ${head + 1}`)),
    ...layers().flatMap((several, layer) => [
      make("span", { class: "line" }, `layer ${layer + 1}`),
      ...several.map((one, head) => thumbnail(weightsOf([one]), layer, head)),
    ]));
  markGrid();
}

function thumbnail(found, layer, head) {
  const canvas = make("canvas", { width: found[0].length, height: found.length });
  const accent = getComputedStyle(document.documentElement).getPropertyValue("--accent").trim();
  const colour = [1, 3, 5].map((digit) => parseInt(accent.slice(digit, digit + 2), 16));
  const shades = found.flatMap((row) => row.flatMap((weight) => [...colour, 255 * Math.sqrt(weight)]));
  const image = new ImageData(Uint8ClampedArray.from(shades), found[0].length);
  canvas.getContext("2d").putImageData(image, 0, 0);
  const name = `Layer ${layer + 1}, head ${head + 1}`;
  const place = { "data-layer": layer, "data-head": head };
  const button = make("button", { type: "button", "aria-label": name, title: name, ...place }, canvas);
  button.addEventListener("click", () => {
    Object.assign(state, { layer, head });
    showChoices();
    showWords();
    markGrid();
  });
  return button;
}

function markGrid() {
  for (const button of at("grid").querySelectorAll("button")) {
    const { layer, head } = button.dataset;
    button.setAttribute("aria-pressed", Number(layer) === state.layer && Number(head) === state.head);
  }
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showGrid);
