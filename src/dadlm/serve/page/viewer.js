// Shows one run step by step: slider, arrow keys, play, and the graph with its hints.

import { make } from "./dom.js";
import { hasEdges } from "./flow.js";
import { drawGraph } from "./graph.js";
import { showHint } from "./hint.js";
import { isTour } from "./models.js";
import { palette } from "./palette.js";
import { shown } from "./svg.js";
import { MEANINGS } from "./words.js";

const BEAT = 700; // milliseconds that a step stays while playing
const SIGNS = { accepted: "✓ ", refused: "✗ " };
const TURN = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

export class Viewer {
  #run = null;
  #index = 0;
  #follows = true; // shows the newest step until an earlier one is chosen
  #timer = null;
  #frame = null;

  /** `page` holds the elements by id; `moved` is called with the index of the step to show. */
  constructor(page, moved) {
    this.page = page;
    this.moved = moved;
    page.slider.addEventListener("input", () => this.go(Number(page.slider.value)));
    page.previous.addEventListener("click", () => this.go(this.#index - 1));
    page.next.addEventListener("click", () => this.go(this.#index + 1));
    page.play.addEventListener("click", () => (this.#timer ? this.#pause() : this.#play()));
    document.addEventListener("keydown", (event) => this.#key(event));
    for (const on of ["pointerover", "focusin"]) {
      page.graph.addEventListener(on, (event) => this.#point(event));
    }
    for (const off of ["pointerleave", "focusout", "scroll"]) {
      page.graph.addEventListener(off, () => (page.hint.hidden = true));
    }
    page.graph.addEventListener("scroll", () => this.#cue());
    new ResizeObserver(() => this.#run && this.redraw()).observe(page.graph);
  }

  get index() {
    return this.#index;
  }

  /** Show a run from its start; null clears the view. */
  show(run) {
    this.#pause();
    this.#run = run;
    this.#index = 0;
    this.#follows = true;
    this.update();
  }

  /** Show steps that have arrived. */
  update() {
    if (this.#follows) this.#index = Math.max(0, this.#count - 1);
    this.redraw();
  }

  go(index) {
    this.#index = Math.max(0, Math.min(index, this.#count - 1));
    this.#follows = this.#index >= this.#count - 1;
    this.redraw();
  }

  /** At most once per frame, however fast steps arrive. */
  redraw() {
    this.#frame ??= requestAnimationFrame(() => {
      this.#frame = null;
      this.#draw();
    });
  }

  /** The graph of the step that is shown, drawn anew for a file. */
  picture() {
    return drawGraph(this.#step, (id) => this.#run.token(id), palette(), this.page.graph.clientWidth);
  }

  get #count() {
    return this.#run?.steps.length ?? 0;
  }

  get #step() {
    return this.#run.graphAt(this.#index);
  }

  #draw() {
    const { slider, count, caption, player, hint } = this.page;
    const isEmpty = this.#count === 0;
    player.hidden = isEmpty;
    hint.hidden = true;
    caption.textContent = isEmpty ? "" : this.#run.describe(this.#index);
    if (this.#run) this.moved(this.#index);
    this.#drawGraph();
    this.#drawDraft();
    if (isEmpty) return;
    slider.max = this.#count - 1;
    slider.value = this.#index;
    slider.setAttribute("aria-valuetext", caption.textContent);
    count.textContent = `${this.#index + 1} / ${this.#count}`;
    // A screen reader would read out every step that arrives or plays.
    caption.setAttribute("aria-live", this.#timer || !this.#run.isOver ? "off" : "polite");
  }

  #drawGraph() {
    const { graph, legend, meaning, more, bothProbabilities } = this.page;
    const hasGraph = this.#run?.hasGraph(this.#index) ?? false;
    legend.hidden = meaning.hidden = !hasGraph;
    if (!hasGraph) {
      more.hidden = true;
      return graph.replaceChildren();
    }
    const focused = graph.contains(document.activeElement) ? document.activeElement.dataset : null;
    const scrolled = graph.scrollLeft;
    graph.replaceChildren(this.picture());
    graph.scrollLeft = scrolled;
    this.#reveal();
    this.#cue();
    const step = this.#step;
    const { mode, model } = this.#run;
    const seen = MEANINGS[mode === "ar" ? "ar" : model.dadlm.family] ?? "";
    meaning.textContent = isTour(model) ? `${seen} ${MEANINGS.tour}` : seen;
    bothProbabilities.hidden = !hasEdges(step);
    const again = focused && this.#node(focused.group, focused.node);
    const first = again ?? graph.querySelector(".lit[tabindex]") ?? graph.querySelector("[tabindex]");
    first?.setAttribute("tabindex", 0);
    again?.focus();
  }

  #drawDraft() {
    const { drafts } = this.page;
    const draft = this.#run?.draftAt(this.#index) ?? [];
    drafts.hidden = !draft.length;
    drafts.replaceChildren(...draft.map(({ text, kind }) =>
      make("span", { className: kind, title: kind, text: SIGNS[kind] + shown(text) }),
    ));
  }

  /** Say that there is more at the sides. */
  #cue() {
    const { graph, more } = this.page;
    const hidden = graph.scrollWidth - graph.clientWidth;
    more.hidden = hidden < 2;
    graph.classList.toggle("more-left", graph.scrollLeft > 1);
    graph.classList.toggle("more-right", graph.scrollLeft < hidden - 1);
  }

  /** Where the graph is wider than its place, bring what this step fixed into view. */
  #reveal() {
    const { graph } = this.page;
    const box = graph.querySelector(`[data-group="${this.#step.fixed.indexOf(true)}"]`)?.getBBox();
    if (!box || graph.scrollWidth <= graph.clientWidth) return;
    if (box.x < graph.scrollLeft || box.x + box.width > graph.scrollLeft + graph.clientWidth) {
      graph.scrollLeft = box.x + (box.width - graph.clientWidth) / 2;
    }
  }

  #node(group, node) {
    return this.page.graph.querySelector(`[data-group="${group}"][data-node="${node}"]`);
  }

  #key(event) {
    if (event.key === "Escape") this.page.hint.hidden = true;
    if (!(event.key in TURN) || event.ctrlKey || event.metaKey || event.altKey) return;
    if (this.page.graph.contains(event.target)) this.#walk(event);
    else if (!event.target.closest("input, select, textarea") && TURN[event.key][0]) {
      this.go(this.#index + TURN[event.key][0]);
    }
  }

  /** From node to node with the arrow keys; sideways onto the path. */
  #walk(event) {
    const at = event.target.closest("[data-group]");
    if (!at) return;
    event.preventDefault();
    const [across, down] = TURN[event.key];
    const group = Number(at.dataset.group) + across;
    const node = across ? this.#step.path[group] : Number(at.dataset.node) + down;
    const next = this.#node(group, node);
    if (!next) return;
    at.setAttribute("tabindex", -1);
    next.setAttribute("tabindex", 0);
    next.focus();
  }

  #point(event) {
    const node = event.target.closest("[data-group]");
    if (node) showHint(this.page.hint, this.#step, node);
    else this.page.hint.hidden = true;
  }

  #play() {
    if (this.#index >= this.#count - 1) this.go(0);
    this.#timer = setInterval(() => {
      this.go(this.#index + 1);
      if (this.#index >= this.#count - 1) this.#pause();
    }, BEAT);
    this.#showPlay("❚❚", "Pause");
  }

  #pause() {
    clearInterval(this.#timer);
    this.#timer = null;
    this.#showPlay("▶", "Play the steps");
  }

  #showPlay(sign, name) {
    this.page.play.textContent = sign;
    this.page.play.setAttribute("aria-label", name);
  }
}
