// The text as it stands at a step, and the figures beneath it.

import { make } from "./dom.js";

export function showText(place, pieces) {
  const atEnd = place.scrollTop + place.clientHeight >= place.scrollHeight - 4;
  place.replaceChildren(...pieces.map(({ kind, text }) => make("span", { className: kind, text })));
  if (atEnd) place.scrollTop = place.scrollHeight;
}

export function showFigures(place, run) {
  const { tokens, passes, seconds } = run;
  const { cache_passes: cachePasses, tokens_per_cycle: perCycle } = run.figures;
  const rows = [
    ["tokens", tokens],
    ["forward passes", passes],
    ["tokens per forward pass", (tokens / Math.max(1, passes)).toFixed(2)],
    ["tokens per cycle", perCycle?.toFixed(2)],
    ["cache passes", cachePasses],
    ["seconds", seconds.toFixed(2)],
  ].filter(([, value]) => value !== undefined);
  place.replaceChildren(
    ...rows.map(([name, value]) => make("div", {}, make("dt", { text: name }), make("dd", { text: value }))),
  );
}
