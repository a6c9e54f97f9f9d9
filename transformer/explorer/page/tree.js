// The beam search: a column for each step, its candidates from the most probable down.

const STEP = 118, BOX = 88, RANK = 46;
let nodes = [], edges = [];

const lastOf = (place) => (sentence().tree ?? []).findIndex((candidate) => candidate.place === place);
const isShown = (candidate) => at("pruned").checked || candidate.fate !== "pruned";

// Where each candidate is drawn; without the pruned ones, the others move up.
function places(tree) {
  const rows = {};
  return tree.map((candidate) => {
    if (!isShown(candidate)) return null;
    const row = rows[candidate.step] ?? 0;
    rows[candidate.step] = row + 1;
    return [candidate.step * STEP, 24 + row * RANK];
  });
}

function showTree() {
  const tree = sentence().tree;
  at("tree-part").hidden = !tree;
  if (!tree) return;
  const where = places(tree), drawn = where.filter(Boolean);
  const width = Math.max(...drawn.map(([x]) => x)) + BOX + 4, height = Math.max(...drawn.map(([, y]) => y)) + 44;
  const svg = make("svg", { width, height, viewBox: `0 0 ${width} ${height}` });
  const start = make("g", { class: "node" }, make("rect", { x: 0.5, y: 24.5, width: BOX, height: 36, rx: 6 }),
    make("text", { x: 8, y: 47, "font-size": 14 }, "<s>"));
  for (let step = 1; step * STEP < width; step++) {
    svg.append(make("text", { class: "column", x: step * STEP + BOX / 2, y: 13 }, `step ${step}`));
  }
  edges = tree.map((candidate, index) => {
    const [x, y] = where[index] ?? [0, 0];
    const [px, py] = where[candidate.parent] ?? [0, 24];
    const from = px + BOX, middle = (from + x) / 2;
    const d = `M${from} ${py + 18} C${middle} ${py + 18} ${middle} ${y + 18} ${x} ${y + 18}`;
    return make("path", { class: `edge ${candidate.fate}`, d });
  });
  const spaced = isSpaced(tree.map(({ token }) => token));
  const begins = tree.map(({ parent, token }) => beginnings([tree[parent]?.token ?? "<s>", token], spaced)[1]);
  nodes = tree.map((candidate, index) => {
    const [x, y] = where[index] ?? [0, 0];
    const reached = { tabindex: -1, role: "button", "aria-label": described(index), "data-index": index };
    const g = make("g", { class: `node ${candidate.fate}`, transform: `translate(${x} ${y})`, ...reached },
      make("rect", { x: 0.5, y: 0.5, width: BOX, height: 36, rx: 6 }),
      make("text", { x: 8, y: 16, "font-size": 14 },
        shorter((begins[index] ? "" : "·") + visible(plain(candidate.token)), 9)),
      make("text", { class: "log-p", x: 8, y: 30 }, signed(candidate.logP, 2)));
    if (candidate.completes.length) {
      g.classList.add("completes");
      g.append(make("text", { class: "check", x: BOX - 12, y: 32, "font-size": 12 }, "✓"));
    }
    if (candidate.place !== null) {
      g.append(make("circle", { class: "badge", cx: BOX - 11, cy: 18.5, r: 8 }),
        make("text", { class: "place", x: BOX - 11, y: 22 }, String(candidate.place + 1)));
    }
    g.addEventListener("pointerenter", () => markPath(index));
    g.addEventListener("pointerleave", () => markPath(lastOf(state.hypothesis)));
    g.addEventListener("focus", () => markPath(index));
    g.addEventListener("blur", () => markPath(lastOf(state.hypothesis)));
    g.addEventListener("click", () => chooseCandidate(index));
    return g;
  });
  const shown = (_, index) => where[index];
  svg.append(...edges.filter(shown), start, ...nodes.filter(shown));
  at("tree").replaceChildren(svg);
  markPath(lastOf(state.hypothesis));
  showEnd();
}

// Scrolls the tree, not the page, to the end of the chosen hypothesis.
function showEnd() {
  const node = nodes[lastOf(state.hypothesis)];
  if (!node?.isConnected) return;
  const tree = at("tree"), frame = tree.getBoundingClientRect(), box = node.getBoundingClientRect();
  tree.scrollLeft += box.right - frame.right + 24;
  tree.scrollTop += (box.top + box.bottom - frame.top - frame.bottom) / 2;
}

function pathTo(index) {
  const path = [];
  for (let here = index; here !== null && here >= 0; here = sentence().tree[here].parent) path.unshift(here);
  return path;
}

function described(index) {
  const { step, rank, logP, gained, score, place, why, completes } = sentence().tree[index];
  const text = textOf(pathTo(index).map((here) => sentence().tree[here].token));
  const share = `last token P ${Math.exp(gained).toFixed(3)}`;
  const end = score === null ? "" : `, score ${signed(score, 3)}`;
  const terms = completes.length ? `, completes ${completes.map((term) => `“${term}”`).join(", ")}` : "";
  const kept = place === null ? "" : `, hypothesis ${place + 1}`;
  return `${text}: step ${step}, rank ${rank + 1}, log P ${signed(logP, 3)}, ${share}, ${why}${end}${terms}${kept}`;
}

function markPath(index) {
  if (!nodes.length || index < 0) return;
  const path = new Set(pathTo(index));
  nodes.forEach((node, here) => {
    node.classList.toggle("on", path.has(here));
    edges[here].classList.toggle("on", path.has(here));
    node.setAttribute("tabindex", here === index ? 0 : -1);
  });
  at("tree-readout").textContent = described(index);
}

function chooseCandidate(index) {
  const { place } = sentence().tree[index];
  if (place !== null && place < sentence().hypotheses.length) chooseHypothesis(place);
  markPath(index);
}

at("pruned").addEventListener("change", showTree);
at("tree").addEventListener("keydown", (event) => {
  const tree = sentence().tree, index = nodes.indexOf(document.activeElement);
  if (index < 0) return;
  const seen = (here) => nodes[here]?.isConnected;
  const beside = (by) => {
    let here = index + by;
    while (tree[here]?.step === tree[index].step && !seen(here)) here += by;
    return tree[here]?.step === tree[index].step ? here : null;
  };
  const children = tree.flatMap(({ parent }, here) => (parent === index && seen(here) ? [here] : []));
  const moves = { ArrowLeft: () => tree[index].parent, ArrowRight: () => children[0] ?? null,
    ArrowUp: () => beside(-1), ArrowDown: () => beside(1) };
  if (event.key === "Enter" || event.key === " ") chooseCandidate(index);
  else if (!moves[event.key]) return;
  event.preventDefault();
  const target = moves[event.key]?.() ?? null;
  if (target !== null) nodes[target].focus();
});
