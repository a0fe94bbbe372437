// A step as SVG: groups as columns, candidates as boxes, transitions as lines, the chosen path lit.
// All looks are attributes, so that the picture is the same in the page and in a file.

import { edgesInto, reach } from "./flow.js";
import { Run } from "./run.js";
import { element, fit, label, percent, round } from "./svg.js";

const LINE = 18, PAD = 8, ROW_GAP = 14; // a text line, what a node adds to its lines, between nodes
const LEFT = 66, TOP = 30, BELOW = 46, EDGE = 12;
const LEAST = 0.01; // transitions that are less probable are not drawn
const SIGNS = { fixed: "✓", infilled: "◆", remasked: "↺" };

/** `step` as Run.graphAt gives it, `token` from an id to its text, `colours` from palette.js. */
export function drawGraph(step, token, colours) {
  const place = placesOf(step);
  const reached = reach(step);
  const svg = element("svg", {
    viewBox: `0 0 ${place.width} ${place.height}`, width: place.width, height: place.height,
    "font-family": colours.font, "font-size": 13, role: "group",
    "aria-label": `Graph of block ${step.block}, step ${step.step}`,
  });
  svg.append(element("rect", { width: place.width, height: place.height, fill: colours.surface }));
  const lines = [], lit = [];
  step.ids.forEach((_, i) => {
    svg.append(column(step, i, place, token, colours));
    for (const edge of edgesInto(step, i, reached)) {
      if (edge.lit) lit.push(line(edge, i, place, colours));
      else if (edge.probability >= LEAST) lines.push(line(edge, i, place, colours));
    }
  });
  svg.append(...lines, ...lit, start(place, colours));
  step.top_tokens.forEach((group, i) =>
    group.forEach((tokens, k) => tokens.length && svg.append(node(step, i, k, reached, place, colours))),
  );
  return svg;
}

/** Where everything stands. A group of one node sits in the middle. */
function placesOf(step) {
  const tallest = Math.max(...step.top_tokens.map((group) => group.filter((tokens) => tokens.length).length));
  const shown = tallest === 1 ? 3 : tallest <= 4 ? 2 : 1; // tokens written into a node
  const high = shown * LINE + PAD;
  const inner = tallest * (high + ROW_GAP) - ROW_GAP;
  const columns = step.ids.length; // few of them can be wider
  const [wide, gap] = columns <= 5 ? [132, 76] : columns <= 8 ? [112, 44] : [104, 30];
  return {
    tallest, shown, wide, high, inner,
    middle: TOP + inner / 2,
    width: LEFT + columns * (wide + gap) - gap + EDGE,
    height: TOP + inner + BELOW,
    x: (i) => LEFT + i * (wide + gap),
    y: (i, k) => {
      const nodes = i < 0 ? 1 : step.top_tokens[i].filter((tokens) => tokens.length).length;
      return TOP + inner / 2 + (k - (nodes - 1) / 2) * (high + ROW_GAP);
    },
  };
}

/** The number of a position above its column, what it has become below. */
function column(step, i, place, token, colours) {
  const state = Run.state(step, i);
  const x = place.x(i), middle = x + place.wide / 2, below = place.height - 17;
  const group = element("g", {});
  if (state === "fixed" || state === "infilled") {
    const band = { x: x - 8, y: 4, width: place.wide + 16, height: place.height - 8, rx: 12 };
    group.append(element("rect", { ...band, fill: colours[state], "fill-opacity": 0.09 }));
  }
  group.append(label(middle, 19, step.first + i, { fill: colours.faint, "font-size": 11 }));
  if (state === "remasked") {
    const box = { x: middle - 26, y: below - 14, width: 52, height: 20, rx: 7, fill: "none" };
    group.append(element("rect", { ...box, stroke: colours.line, "stroke-dasharray": "3 3" }));
    group.append(label(middle, below, SIGNS.remasked, { fill: colours.faint }));
  } else {
    const look = state === "anchor" ? { fill: colours.faint } : { fill: colours[state], "font-weight": 600 };
    const sign = SIGNS[state] ? `${SIGNS[state]} ` : "";
    group.append(label(middle, below, sign + fit(token(step.ids[i]), place.wide - 14, look, colours), look));
  }
  return group;
}

function start(place, colours) {
  const group = element("g", {});
  const dot = { cx: 22, cy: place.middle, r: 6, fill: colours.surface, stroke: colours.edge };
  const look = { fill: colours.faint, "font-size": 11 };
  group.append(element("circle", dot), label(22, place.middle + 22, "start", look));
  return group;
}

function line({ from, to, probability, flow, lit }, i, place, colours) {
  const x0 = i ? place.x(i - 1) + place.wide : 28, x1 = place.x(i);
  const y0 = i ? place.y(i - 1, from) : place.middle, y1 = place.y(i, to);
  const bend = (x1 - x0) * 0.5;
  const d = `M${x0} ${y0}C${x0 + bend} ${y0} ${x1 - bend} ${y1} ${x1} ${y1}`;
  if (place.tallest === 1) { // no choice, no transitions: only the order
    const dotted = { "stroke-dasharray": "1 5", "stroke-linecap": "round" };
    return element("path", { d, fill: "none", stroke: colours.edge, ...dotted });
  }
  return element("path", {
    d, fill: "none",
    stroke: lit ? colours.path : colours.edge,
    "stroke-width": round((lit ? 1.6 : 0.6) + 3.4 * probability),
    "stroke-opacity": lit ? 1 : round(0.1 + 0.5 * Math.sqrt(flow)),
    "stroke-linecap": "round", class: lit ? "lit" : "edge",
  });
}

function node(step, i, k, reached, place, colours) {
  const kind = step.anchor[i] ? "anchor" : step.path[i] === k ? "lit" : "candidate";
  const high = kind === "anchor" ? LINE + PAD + 4 : place.high;
  const box = { x: place.x(i), y: place.y(i, k) - high / 2, width: place.wide, height: high, rx: 8 };
  const group = element("g", { "data-group": i, "data-node": k, tabindex: -1, role: "img", class: kind });
  group.setAttribute("aria-label", spoken(step, i, k, reached[i][k]));
  const look = {
    anchor: { fill: colours.anchor, stroke: colours.anchor },
    lit: { fill: colours.surface, stroke: colours.path, "stroke-width": 2.2 },
    candidate: { fill: colours.surface, stroke: colours.line },
  }[kind];
  group.append(element("rect", { ...box, ...look }));
  const tokens = step.top_tokens[i][k].slice(0, place.shown);
  if (kind === "anchor") group.append(...pinned(tokens[0][1], box, colours));
  else group.append(listed(tokens, box, kind === "lit", reached[i][k], colours));
  return group;
}

/** The inside of an anchor: its token, held by a pin. */
function pinned(text, { x, y, width, height }, colours) {
  const middle = x + width / 2, look = { fill: colours["on-anchor"], "font-weight": 600 };
  const pin = { cx: middle, cy: y, r: 4.5, fill: colours.anchor, stroke: colours.surface, "stroke-width": 1.5 };
  const word = fit(text, width - 12, look, colours);
  return [element("circle", pin), label(middle, y + height / 2 + 4.5, word, look)];
}

/** The inside of a candidate: tokens on bars as long as they are probable. */
function listed(tokens, { x, y, width }, lit, reached, colours) {
  const group = element("g", { opacity: lit ? 1 : round(0.6 + 0.4 * Math.sqrt(reached)) });
  const first = { fill: colours.ink, "font-weight": lit ? 600 : 500 };
  const later = { fill: colours.faint, "font-size": 11.5 };
  const [fill, strength] = lit ? [colours.path, 0.22] : [colours.edge, 0.12];
  tokens.forEach(([, text, p], n) => {
    const base = y + PAD / 2 + (n + 1) * LINE - 5;
    const share = { x: x + 4, y: base - 12, width: round((width - 8) * p), height: LINE - 3, rx: 4 };
    const look = n ? later : first;
    group.append(
      element("rect", { ...share, fill, "fill-opacity": strength }),
      label(x + 9, base, fit(text, width - 45, look, colours), { ...look, "text-anchor": "start" }),
      label(x + width - 8, base, percent(p), { fill: colours.faint, "font-size": 11, "text-anchor": "end" }),
    );
  });
  return group;
}

function spoken(step, i, k, mass) {
  const where = `Position ${step.first + i}`;
  const tokens = step.top_tokens[i][k];
  if (step.anchor[i]) return `${where}, anchor: ${tokens[0][1]}`;
  const list = tokens.map(([, text, p]) => `${text} ${percent(p)}`).join(", ");
  const lit = step.path[i] === k ? ", on the chosen path" : "";
  return `${where}, candidate ${k}${lit}, reached with ${percent(mass)}: ${list}`;
}
