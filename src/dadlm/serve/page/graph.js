// A step as SVG: groups as columns, candidates as boxes, transitions as lines, the chosen path lit.
// All styling is in attributes, so that the picture is the same on the page and in a file.

import { edgesInto, reach, tokensAt } from "./flow.js";
import { Run } from "./run.js";
import { element, fit, label, percent, round } from "./svg.js";

const EDGE = 10, TOP = 26, BELOW = 40, ROW_GAP = 10;
const NARROWEST = 60, WIDEST = 200; // from one column to the next
const ROOMY = 92; // nodes as wide as this list several tokens with their probabilities
const LINE = 21, PAD = 7;
const LEAST = 0.01; // transitions that are less probable are not drawn
const SIGNS = { fixed: "✓", infilled: "◆", remasked: "↺" };

/** `step` as Run.graphAt gives it, `token` from an id to its text, `colours` from palette.js. */
export function drawGraph(step, token, colours, width) {
  const place = placesOf(step, width);
  const reached = reach(step);
  const svg = element("svg", {
    viewBox: `0 0 ${place.width} ${place.height}`, width: place.width, height: place.height,
    "font-family": colours.font, "font-size": 12, role: "group",
    "aria-label": `Graph of block ${step.block}, pass ${step.step + 1}`,
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

/** Where everything stands in a picture about as wide as `width`. A group of one node sits in the middle. */
function placesOf(step, width) {
  const nodes = step.top_tokens.map((group) => group.filter((tokens) => tokens.length).length);
  const tallest = Math.max(...nodes), columns = step.ids.length;
  const left = width / columns > WIDEST / 2 ? 62 : 34; // room for the lines from the start
  const pitch = Math.max(NARROWEST, Math.min(WIDEST, Math.floor((width - left - EDGE) / columns)));
  const gap = Math.round(pitch * (pitch > 120 ? 0.32 : 0.24));
  const wide = pitch - gap;
  const isRoomy = wide >= ROOMY;
  const rows = tallest === 1 ? 3 : 2; // tokens listed in a wide node
  const high = isRoomy ? rows * LINE + PAD : 36;
  const inner = tallest * (high + ROW_GAP) - ROW_GAP;
  return {
    tallest, isRoomy, rows, wide, high, gap,
    middle: TOP + inner / 2,
    width: left + columns * pitch - gap + EDGE,
    height: TOP + inner + BELOW,
    x: (i) => left + i * pitch,
    y: (i, k) => TOP + inner / 2 + (k - (nodes[i] - 1) / 2) * (high + ROW_GAP),
  };
}

/** The number of a position above its column, what it has become below. */
function column(step, i, place, token, colours) {
  const state = Run.state(step, i);
  const x = place.x(i), middle = x + place.wide / 2, below = place.height - 15;
  const group = element("g", {});
  if (state === "fixed" || state === "infilled") {
    const band = { x: x - 5, y: 3, width: place.wide + 10, height: place.height - 6, rx: 10 };
    group.append(element("rect", { ...band, fill: colours[state], "fill-opacity": 0.08 }));
  }
  group.append(label(middle, 17, step.first + i, { fill: colours.faint, "font-size": 10.5 }));
  if (state === "remasked") {
    const box = { x: middle - 17, y: below - 14, width: 34, height: 19, rx: 6, fill: "none" };
    group.append(element("rect", { ...box, stroke: colours.line, "stroke-dasharray": "3 3" }));
    group.append(label(middle, below, SIGNS.remasked, { fill: colours.faint }));
  } else {
    const look = state === "anchor" ? { fill: colours.faint } : { fill: colours[state], "font-weight": 600 };
    const sign = SIGNS[state] ? `${SIGNS[state]} ` : "";
    const width = place.wide + place.gap - (sign ? 18 : 4);
    group.append(label(middle, below, sign + fit(token(step.ids[i]), width, look, colours), look));
  }
  return group;
}

function start(place, colours) {
  const group = element("g", {});
  const dot = { cx: 15, cy: place.middle, r: 5, fill: colours.surface, stroke: colours.edge };
  group.append(element("circle", dot));
  group.append(label(15, 17, "start", { fill: colours.faint, "font-size": 10.5 }));
  return group;
}

function line({ from, to, probability, flow, lit }, i, place, colours) {
  const x0 = i ? place.x(i - 1) + place.wide : 20, x1 = place.x(i);
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
    "stroke-width": round((lit ? 1.6 : 0.6) + (place.isRoomy ? 3.4 : 2.4) * probability),
    "stroke-opacity": lit ? 1 : round(0.1 + 0.5 * Math.sqrt(flow)),
    "stroke-linecap": "round", class: lit ? "lit" : "edge",
  });
}

function node(step, i, k, reached, place, colours) {
  const kind = step.anchor[i] ? "anchor" : step.path[i] === k ? "lit" : "candidate";
  const high = kind === "anchor" ? 28 : place.high;
  const box = { x: place.x(i), y: place.y(i, k) - high / 2, width: place.wide, height: high, rx: 7 };
  const group = element("g", { "data-group": i, "data-node": k, tabindex: -1, role: "img", class: kind });
  group.setAttribute("aria-label", spoken(step, i, k, reached[i][k]));
  const tokens = tokensAt(step, i, k);
  const state = kind === "lit" ? (tokens[0].isDrawn ? Run.state(step, i) : "path") : kind;
  group.append(element("rect", { ...box, ...looks(state, colours) }));
  if (kind === "anchor") group.append(...pinned(tokens[0].text, box, colours));
  else if (place.isRoomy) group.append(...listed(tokens.slice(0, place.rows), box, state, colours));
  else group.append(...compact(tokens[0], box, state, colours));
  return group;
}

/** The box of a node: an anchor, another candidate, on the path, or with the token that was drawn there. */
function looks(state, colours) {
  if (state === "anchor") return { fill: colours.anchor, stroke: colours.anchor };
  if (state === "candidate") return { fill: colours.surface, stroke: colours.line };
  const dashes = state === "remasked" ? { "stroke-dasharray": "4 3" } : {};
  return { fill: colours.surface, stroke: colours[state] ?? colours.path, "stroke-width": 2, ...dashes };
}

/** The inside of an anchor: its token, held by a pin. */
function pinned(text, { x, y, width, height }, colours) {
  const middle = x + width / 2, look = { fill: colours["on-anchor"], "font-weight": 600 };
  const pin = { cx: middle, cy: y, r: 4, fill: colours.anchor, stroke: colours.surface, "stroke-width": 1.5 };
  return [
    element("circle", pin),
    label(middle, y + height / 2 + 4.5, fit(text, width - 6, look, colours), look),
  ];
}

/** The inside of a narrow candidate: a token, and below it how probable it is. */
function compact({ text, given, alone, isDrawn }, { x, y, width, height }, state, colours) {
  const look = wordLook(isDrawn, state, colours), small = { fill: colours.faint, "font-size": 10.5 };
  const middle = x + width / 2;
  return [
    label(middle, y + 14.5, fit(text, width - 6, look, colours), look),
    label(middle, y + height - 8, both(given, alone), small),
    share(x + 5, y + height - 5, width - 10, given, state, colours),
  ];
}

/** The inside of a wide candidate: tokens with their probabilities. */
function listed(tokens, { x, y, width }, state, colours) {
  return tokens.flatMap(({ text, given, alone, isDrawn }, n) => {
    const base = y + 17 + n * LINE;
    const chance = both(given, alone);
    const look = n && !isDrawn ? { fill: colours.faint } : wordLook(isDrawn, state, colours);
    const number = { fill: colours.faint, "font-size": 11, "text-anchor": "end" };
    const word = fit(text, width - 24 - 6 * chance.length, look, colours);
    return [
      label(x + 8, base, word, { ...look, "text-anchor": "start" }),
      label(x + width - 8, base, chance, number),
      share(x + 8, base + 5, width - 16, given, n ? "candidate" : state, colours),
    ];
  });
}

/** A token's probability given the one to its left, and beside it the one without, if that is another. */
function both(given, alone) {
  return given === alone ? percent(given) : `${percent(given).replace("%", "")} · ${percent(alone)}`;
}

function wordLook(isDrawn, state, colours) {
  const fill = state === "fixed" || state === "infilled" ? colours[state] : colours.ink;
  return { fill, "font-weight": isDrawn ? 700 : 500 };
}

/** A thin bar as long as something is probable. */
function share(x, y, width, p, state, colours) {
  const fill = state === "candidate" ? colours.edge : colours[state] ?? colours.path;
  const size = { x, y, width: Math.max(1, round(width * p)), height: 2.5, rx: 1.2 };
  return element("rect", { ...size, fill, "fill-opacity": state === "candidate" ? 0.55 : 0.9 });
}

function spoken(step, i, k, mass) {
  const where = `Position ${step.first + i}`;
  const tokens = tokensAt(step, i, k);
  if (step.anchor[i]) return `${where}, known: ${tokens[0].text}`;
  const said = ({ text, given, isDrawn }) => `${isDrawn ? "drawn " : ""}${text} ${percent(given)}`;
  const lit = step.path[i] === k ? ", on the chosen path" : "";
  return `${where}, candidate ${k}${lit}, reached with ${percent(mass)}: ${tokens.map(said).join(", ")}`;
}
