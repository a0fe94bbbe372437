// The text as it stands at a step, and the figures beneath it.

import { make } from "./dom.js";

export function showText(place, pieces) {
  const atEnd = place.scrollTop + place.clientHeight >= place.scrollHeight - 4;
  place.replaceChildren(...pieces.map(({ kind, text }) => make("span", { className: kind, text })));
  if (atEnd) place.scrollTop = place.scrollHeight;
}

export function showFigures(place, run, seconds) {
  const { tokens, passes } = run;
  const { cache_passes: cachePasses, seconds: total } = run.figures;
  const rows = [
    ["tokens", tokens],
    ["forward passes", passes],
    ["tokens per forward pass", (tokens / Math.max(1, passes)).toFixed(2)],
    ["cache passes", cachePasses],
    ["seconds", (total ?? seconds).toFixed(2)],
  ].filter(([, value]) => value !== undefined);
  place.replaceChildren(
    ...rows.map(([name, value]) => make("div", {}, make("dt", { text: name }), make("dd", { text: value }))),
  );
}
