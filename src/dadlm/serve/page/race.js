// Models and modes on the same prompt and seed, side by side.
// Without tracing: drawing graphs would be part of the time. The same seed writes the same text again, so
// the steps of a lane can be shown afterwards.

import { bar, make } from "./dom.js";
import { inWords, laneName } from "./models.js";
import { showText } from "./text.js";

const UNKNOWN = "…";
const TICK = 100; // milliseconds between two looks at the clock
const MEASURES = [
  { name: "time", less: true, of: (run) => run.seconds, words: (x) => `${x.toFixed(2)} s` },
  { name: "forward passes", less: true, of: (run) => run.passes, words: String },
  { name: "tokens per pass", less: false, of: perPass, words: (x) => x.toFixed(2) },
];

function perPass({ tokens, passes }) {
  return passes ? tokens / passes : 0;
}

export class Lane {
  constructor(run, lookInside) {
    this.run = run;
    this.problem = null;
    const { model } = run;
    const name = laneName(run);
    this.text = make("div", { className: "prose" });
    this.bars = make("div", { className: "bars" });
    this.inside = make("button", { type: "button", className: "quiet", text: "See its steps", hidden: true });
    this.inside.addEventListener("click", () => lookInside(run));
    const title = make("h2", { text: name }, make("small", { text: inWords(model) }));
    this.card = make("article", { className: "lane card" }, title, this.bars, this.text, this.inside);
    this.card.setAttribute("aria-label", name);
  }

  async go(chunks) {
    try {
      await this.run.time(chunks);
    } catch (error) {
      if (error.name === "AbortError") throw error;
      this.problem = error.message; // the others go on
    }
  }

  draw(lanes, isOver) {
    const { run } = this;
    const rows = MEASURES.flatMap((measure) => this.#row(measure, lanes, isOver));
    const problem = make("p", { className: "problem", text: this.problem ?? "" });
    this.bars.replaceChildren(...(this.problem ? [problem] : [...rows, ...this.#tokens()]));
    const waits = run.ended || !run.begun ? 0 : Math.min(run.model.dadlm.block_size, 32);
    showText(this.text, [...run.piecesAt(0), ...Array(waits).fill({ kind: "mask", text: "" })]);
    this.inside.hidden = !run.isOver;
  }

  /** The bar of the best is highlighted once all have finished. */
  #row({ name, less, of, words }, lanes, isOver) {
    const all = lanes.filter(({ problem }) => !problem).map(({ run }) => of(run));
    const value = of(this.run);
    const isBest = isOver && all.length > 1 && value === (less ? Math.min(...all) : Math.max(...all));
    const line = bar(value / Math.max(1e-9, ...all));
    if (isBest) line.classList.add("best");
    const better = make("small", { text: less ? " less is better" : " more is better" });
    const number = value ? `${words(value)}${isBest ? " ★" : ""}` : UNKNOWN;
    return [make("span", { text: name }, better), line, make("b", { text: number })];
  }

  #tokens() {
    return [make("span", { text: "tokens" }), make("i"), make("b", { text: this.run.tokens || UNKNOWN })];
  }
}

/** Run the lanes at once or in turn, and redraw them until the last has finished. */
export async function race(lanes, inTurn, chunksOf) {
  let isOver = false;
  const draw = () => lanes.forEach((lane) => lane.draw(lanes, isOver));
  const clock = setInterval(draw, TICK);
  const go = (lane) => lane.go(chunksOf(lane.run));
  try {
    if (inTurn) for (const lane of lanes) await go(lane);
    else await Promise.all(lanes.map(go));
    isOver = true;
  } finally {
    clearInterval(clock);
    draw();
  }
}
