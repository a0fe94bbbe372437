// The card beside a node that is pointed at or focused: its tokens, and how likely it is to be reached.

import { bar, make } from "./dom.js";
import { drawnAt, reach } from "./flow.js";
import { percent, shown } from "./svg.js";

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
    return [make("h3", { text: `${where}, anchor` }), token, make("p", { text: "Known before this step." })];
  }
  const rows = step.top_tokens[i][k].map(([, text, p]) =>
    make("li", {}, make("b", { text: shown(text) }), bar(p), make("span", { text: percent(p) })),
  );
  const before = i ? step.path[i - 1] : 0;
  const lines = [
    `${percent(step.transition[i][before][k])} from the path’s node before`,
    `${percent(reach(step)[i][k])} over all paths`,
  ];
  const drawn = drawnAt(step, i, k);
  if (drawn) {
    const { text, given, alone } = drawn;
    const beside = given === alone ? "" : ` after the token before it, ${percent(alone)} alone`;
    lines.unshift(`Drawn: ${shown(text)}, ${percent(given)}${beside}`);
  }
  const lit = step.path[i] === k ? ", on the path" : "";
  return [
    make("h3", { text: `${where}, candidate ${k}${lit}` }),
    make("ol", {}, ...rows),
    ...lines.map((text) => make("p", { text })),
  ];
}
