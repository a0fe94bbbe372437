// The card beside a node that is hovered, focused or tapped: its tokens, and how likely it is to be reached.

import { bar, make } from "./dom.js";
import { drawnAt, reach } from "./flow.js";
import { Run } from "./run.js";
import { percent, shown } from "./svg.js";

const FATES = { fixed: "kept", infilled: "infilled", remasked: "masked again" };

export function showHint(hint, step, node) {
  const i = Number(node.dataset.group), k = Number(node.dataset.node);
  hint.replaceChildren(...contents(step, i, k));
  hint.hidden = false;
  const card = hint.offsetParent.getBoundingClientRect(), box = node.getBoundingClientRect();
  const left = box.left - card.left + box.width / 2 - hint.offsetWidth / 2;
  hint.style.left = `${Math.max(8, Math.min(left, card.width - hint.offsetWidth - 8))}px`;
  const under = box.bottom - card.top + 8;
  const fits = box.bottom + 8 + hint.offsetHeight < innerHeight;
  hint.style.top = `${fits ? under : box.top - card.top - hint.offsetHeight - 8}px`;
}

function contents(step, i, k) {
  const where = `Position ${step.first + i}`;
  if (step.anchor[i]) {
    const token = make("b", { text: shown(step.top_tokens[i][0][0][1]) });
    return [make("h3", { text: where }), token, make("p", { text: "Known before this pass." })];
  }
  const before = i ? step.path[i - 1] : 0;
  const lit = step.path[i] === k ? ", on the path" : "";
  const reached = [
    `${percent(step.transition[i][before][k])} from the path’s node before`,
    `${percent(reach(step)[i][k])} over all paths`,
  ];
  return [
    make("h3", { text: `${where}, candidate ${k}${lit}` }),
    ...drawn(step, i, k),
    make("h4", { text: "Likeliest tokens" }),
    make("ol", {}, ...step.top_tokens[i][k].map(([, text, p]) => row(shown(text), p))),
    make("h4", { text: "Reached with" }),
    ...reached.map((text) => make("p", { text })),
  ];
}

/** The token that was drawn, with both of its probabilities where they differ. */
function drawn(step, i, k) {
  const token = drawnAt(step, i, k);
  if (!token) return [];
  const { text, given, alone } = token;
  const title = make("p", { className: Run.state(step, i) }, "Drawn: ", make("b", { text: shown(text) }));
  title.append(`, ${FATES[Run.state(step, i)]}`);
  const rows = given === alone ? [row("probability", given)] : [
    row("after the token to its left", given), row("without it", alone),
  ];
  return [title, make("ol", { className: "drawn" }, ...rows)];
}

function row(name, p) {
  return make("li", {}, make("b", { text: name }), bar(p), make("span", { text: percent(p) }));
}
