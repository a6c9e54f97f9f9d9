// The two rows of tokens: those that attend, and those attended to.

const buttons = { queries: [], keys: [] };
let weights = []; // [query][key]
let whenShown = () => {}; // called with the side and the index of a token that is shown

function shade(element, weight) {
  const amount = Math.sqrt(weight);
  element.style.setProperty("--shade", amount.toFixed(3));
  element.classList.toggle("shaded", amount > 0); // where the ink is black, or white on a dark page,
  element.classList.toggle("middling", amount > 0.6); // up to here,
  element.classList.toggle("strong", amount > 0.81); // or here on a light page: a contrast of 4.5
}

function drawWords(found) {
  weights = found;
  Object.keys(buttons).forEach((side) => {
    const pieces = piecesOf(side), groups = groupsOf(pieces), begins = beginnings(pieces);
    buttons[side] = labelsOf(pieces).map((label, index) => {
      const [first] = groups[index];
      const classes = `word${begins[first] ? " begins" : ""}${special(pieces[first]) ? " special" : ""}`;
      const place = { "data-side": side, "data-index": index };
      const button = make("button", { type: "button", class: classes, dir: "auto", ...place },
        make("span", { class: "piece" }, label), make("span", { class: "number" }));
      button.addEventListener("pointerenter", () => show(side, index));
      button.addEventListener("pointerleave", () => show(state.side, state.index));
      button.addEventListener("focus", () => pin(side, index));
      button.addEventListener("click", () => pin(side, index));
      return button;
    });
    at(side).dir = directionOf(joined(pieces.filter((piece) => !special(piece))));
    at(side).replaceChildren(...buttons[side]);
  });
}

// Until another token is pinned, the page comes back to this one.
function pin(side, index) {
  Object.assign(state, { side, index });
  show(side, index);
}

function show(side, index) {
  const query = side === "queries", other = query ? "keys" : "queries";
  const found = query ? weights[index] : weights.map((row) => row[index]);
  for (const [row, several] of Object.entries(buttons)) {
    several.forEach((button, place) => {
      const weight = row === other ? found[place] : null;
      const chosen = row === side && place === index;
      button.classList.toggle("chosen", chosen);
      button.setAttribute("aria-pressed", chosen);
      button.tabIndex = place === (row === side ? index : 0) ? 0 : -1;
      button.querySelector(".number").textContent = weight === null ? "" : weight.toFixed(2);
      if (weight === null) delete button.dataset.weight;
      else button.dataset.weight = weight.toFixed(4);
      shade(button, weight ?? 0);
    });
  }
  const names = labelsOf(piecesOf(other));
  const best = found.map((weight, place) => [weight, place]).sort(([a], [b]) => b - a).slice(0, 5);
  const list = best.filter(([weight]) => weight >= 0.0005)
    .flatMap(([weight, place], rank) => [rank ? " · " : "", make("bdi", {}, names[place]), ` ${weight.toFixed(3)}`]);
  at("readout").replaceChildren(
    make("strong", {}, make("bdi", {}, labelsOf(piecesOf(side))[index])),
    query ? " attends to " : " is attended to by ", ...(list.length ? list : ["nothing"]));
  whenShown(side, index);
}

// Arrow keys move within a row, Tab from row to row.
for (const side of Object.keys(buttons)) {
  at(side).addEventListener("keydown", (event) => {
    const last = buttons[side].length - 1;
    const index = buttons[side].indexOf(document.activeElement);
    const step = at(side).dir === "rtl" ? -1 : 1;
    const moved = { ArrowRight: index + step, ArrowLeft: index - step, Home: 0, End: last }[event.key];
    const target = buttons[side][moved];
    if (!target) return;
    event.preventDefault();
    target.focus();
  });
}
