// The tree that the chosen output spells, if it is one.

function showParse() {
  const { text, parse } = hypothesis();
  at("parse").hidden = at("parse").nextElementSibling.hidden = !parse;
  if (!parse) return;
  const { width, height, nodes, lines } = parse;
  const svg = make("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": text });
  svg.append(
    ...lines.map(([x1, y1, x2, y2]) => make("path", { class: "edge", d: `M${x1} ${y1} L${x2} ${y2}` })),
    ...nodes.map(({ text: label, x, y, isWord }) => make("text", { x, y, class: isWord ? "of-parse" : "of-parse label" }, label)),
  );
  at("parse").replaceChildren(svg);
}
