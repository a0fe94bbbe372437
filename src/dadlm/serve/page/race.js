// All models on the same prompt and seed, side by side.
// Without tracing: drawing graphs would be part of the time. The same seed writes the same text again, so
// the steps of a lane can be shown afterwards.

import { bar, make } from "./dom.js";
import { showText } from "./text.js";

const UNKNOWN = "…";
const TICK = 100; // milliseconds between two looks at the clock

export class Lane {
  constructor(run, lookInside) {
    this.run = run;
    this.begun = this.ended = null;
    this.praise = make("em");
    this.text = make("div", { className: "prose" });
    this.bars = make("div", { className: "bars" });
    this.inside = make("button", { type: "button", className: "quiet", text: "See its steps", hidden: true });
    this.inside.addEventListener("click", () => lookInside(run.model));
    const title = make("h2", { text: run.model.id }, make("small", { text: about(run.model) }), this.praise);
    this.card = make("article", { className: "lane card" }, title, this.bars, this.text, this.inside);
    this.card.setAttribute("aria-label", run.model.id);
  }

  get seconds() {
    if (this.begun === null) return 0;
    return this.run.figures.seconds ?? ((this.ended ?? performance.now()) - this.begun) / 1000;
  }

  async go(chunks) {
    this.begun = performance.now();
    for await (const chunk of chunks) this.run.take(chunk);
    this.end();
  }

  end() {
    this.ended ??= performance.now();
  }

  draw(most) {
    const { run } = this;
    const waits = this.ended ? 0 : run.model.dadlm.block_size;
    showText(this.text, [...run.piecesAt(0), ...Array(Math.min(waits, 32)).fill({ kind: "mask", text: "" })]);
    const perForward = run.passes ? run.tokens / run.passes : 0;
    this.bars.replaceChildren(
      ...row("time", `${this.seconds.toFixed(2)} s`, this.seconds / most.seconds),
      ...row("forward passes", run.passes || UNKNOWN, run.passes / most.passes),
      ...row("tokens per pass", perForward ? perForward.toFixed(2) : UNKNOWN, perForward / most.perForward),
      ...row("tokens", run.tokens || UNKNOWN, run.tokens / most.tokens),
    );
    this.inside.hidden = !run.isOver;
  }
}

/** Run the lanes at once or in turn, and keep them drawn until the last is there. */
export async function race(lanes, inTurn, chunksOf) {
  const draw = () => drawAll(lanes);
  const clock = setInterval(draw, TICK);
  const go = (lane) => lane.go(chunksOf(lane.run));
  try {
    if (inTurn) for (const lane of lanes) await go(lane);
    else await Promise.all(lanes.map(go));
    const best = Math.min(...lanes.map(({ seconds }) => seconds));
    for (const lane of lanes) lane.praise.textContent = lane.seconds === best ? "fastest" : "";
  } finally {
    clearInterval(clock);
    for (const lane of lanes) lane.end(); // also those that were stopped
    draw();
  }
}

function drawAll(lanes) {
  const largest = (of) => Math.max(1e-9, ...lanes.map(of));
  const most = {
    seconds: largest((lane) => lane.seconds),
    passes: largest(({ run }) => run.passes),
    tokens: largest(({ run }) => run.tokens),
    perForward: largest(({ run }) => (run.passes ? run.tokens / run.passes : 0)),
  };
  for (const lane of lanes) lane.draw(most);
}

function row(name, value, share) {
  return [make("span", { text: name }), bar(share), make("b", { text: value })];
}

function about({ dadlm }) {
  const { family, block_size: block, candidates } = dadlm;
  if (family === "ar") return "one token after another";
  return family === "dadlm" ? `blocks of ${block}, ${candidates} candidates` : `blocks of ${block}`;
}
