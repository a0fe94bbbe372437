// A run as data: its request, steps and text, and what follows from them. No drawing.

const OF_DRAWN = ["drawn", "drawn_texts", "probability", "alone"];
const BEFORE = 7; // earlier tokens that are drawn before one that is decided alone

export class Run {
  /** `parts` is the request's text: strings, and numbers for gaps to fill; a prompt is its only part. */
  constructor(lane, parts, request) {
    Object.assign(this, { ...lane, parts, request });
    this.begun = this.ended = null;
    this.steps = [];
    this.text = "";
    this.gaps = null;
    this.usage = null;
    this.figures = {};
    this.reason = null;
    this.isTracing = false;
    this.traced = 0; // characters of the text that the steps so far have written
    this.textOf = new Map(); // token id → how it is written
    this.given = new Map(); // block → which of its positions were known from the start
  }

  /** Consume a stream of the server's objects, timed. */
  async time(chunks, changed = () => {}) {
    this.begun = performance.now();
    try {
      for await (const chunk of chunks) {
        this.#take(chunk);
        changed();
      }
    } finally {
      this.ended = performance.now();
    }
  }

  /** Consume the steps of the same text, written once more with tracing, which takes longer. */
  async trace(chunks, changed) {
    this.isTracing = true;
    try {
      for await (const chunk of chunks) {
        if (chunk.dadlm?.step) this.#takeStep(chunk.dadlm.step);
        this.traced += chunk.choices?.[0]?.text.length ?? 0;
        changed();
      }
    } finally {
      this.isTracing = false;
    }
  }

  #take(chunk) {
    const choice = chunk.choices?.[0];
    if (choice?.text) this.text += choice.text;
    if (choice?.finish_reason) this.reason = choice.finish_reason;
    if (chunk.gaps) this.gaps = chunk.gaps;
    if (chunk.text !== undefined) Object.assign(this, { text: chunk.text, reason: "filled" });
    if (chunk.usage) this.usage = chunk.usage;
    const { step, ...figures } = chunk.dadlm ?? {};
    Object.assign(this.figures, figures);
  }

  #takeStep(step) {
    for (const [id, text] of step.top_tokens?.flat(2) ?? []) this.textOf.set(id, text);
    step.texts?.forEach((text, i) => this.textOf.set(step.ids[i], text));
    if (!this.given.has(step.block)) this.given.set(step.block, step.anchor);
    // How much of the text stood there at this step; not part of the event.
    this.steps.push({ ...step, written: this.traced });
  }

  get isOver() {
    return this.reason !== null && !this.isTracing;
  }

  /** Of the run without tracing, as measured by the server. */
  get seconds() {
    if (this.begun === null) return 0;
    return this.figures.seconds ?? ((this.ended ?? performance.now()) - this.begun) / 1000;
  }

  get passes() {
    return this.figures.forward_passes ?? 0;
  }

  get tokens() {
    return this.usage?.completion_tokens ?? this.figures.tokens ?? 0;
  }

  token(id) {
    return this.textOf.get(id) ?? `#${id}`;
  }

  /** What has become of a position: anchor, fixed, infilled, or remasked. */
  static state(step, i) {
    if (step.anchor[i]) return "anchor";
    if (step.infilled[i]) return "infilled";
    return step.fixed[i] ? "fixed" : "remasked";
  }

  /** The text as it stood after a step: pieces of { kind, text }, kind being a class of the page's style. */
  piecesAt(index) {
    const atEnd = this.isOver && index >= this.steps.length - 1;
    if (this.fillsGaps) return this.#filledAt(index, atEnd);
    const step = this.steps[index];
    const prompt = { kind: "prompt", text: this.parts[0] };
    if (atEnd || !step) return [prompt, { kind: "text", text: this.text }];
    const written = { kind: "text", text: this.text.slice(0, step.written) };
    return [prompt, written, ...this.#openPositions(step)];
  }

  get fillsGaps() {
    return this.parts.some((part) => typeof part === "number");
  }

  /** A step worth seeing first: the one with most known tokens, but at most half of its block. */
  get openingStep() {
    const scores = this.steps.map(({ anchor = [] }) => {
      const known = anchor.filter(Boolean).length;
      return 2 * known <= anchor.length ? known : -1;
    });
    return this.model.dadlm.block_size > 1 ? scores.indexOf(Math.max(...scores)) : Infinity;
  }

  /** Whether a step has a graph. */
  hasGraph(index) {
    return Boolean(this.steps[index]?.top_tokens?.length);
  }

  /** How many positions of a step's block belong to the text: its last block may be longer than the text. */
  #lengthOf(step) {
    const { length } = step.ids;
    const isCut = this.reason === "length" || this.reason === "filled"; // not after an end-of-text
    if (!isCut || !this.usage) return length;
    return Math.max(1, Math.min(length, this.usage.total_tokens - step.block * length));
  }

  #openPositions(step) {
    if (!step.ids) return []; // a step of a mode that has no blocks
    const given = this.given.get(step.block);
    const ids = step.ids.slice(0, this.#lengthOf(step));
    return ids.flatMap((_, i) => (given[i] ? [] : [this.#piece(step, i)]));
  }

  #piece(step, i) {
    const state = Run.state(step, i);
    if (state === "remasked") return { kind: "mask", text: "" };
    return { kind: state === "anchor" ? "token" : `token ${state}`, text: this.token(step.ids[i]) };
  }

  /** Gaps are filled block by block, so the open positions of the blocks in turn are those of the gaps. */
  #filledAt(index, atEnd) {
    const latest = new Map(this.steps.slice(0, index + 1).map((step) => [step.block, step]));
    const open = [...latest.values()].flatMap((step) => this.#openPositions(step));
    let gap = 0;
    return this.parts.flatMap((part) => {
      if (typeof part === "string") return [{ kind: "prompt", text: part }];
      const pieces = open.splice(0, part);
      const text = this.gaps?.[gap++];
      if (text !== undefined && (atEnd || !this.steps.length)) return [{ kind: "text", text }];
      return [...pieces, ...Array(part - pieces.length).fill({ kind: "mask", text: "" })];
    });
  }

  /** The step to draw, as long as the text. Where tokens are decided one by one, those before it stand there
   * as anchors. */
  graphAt(index) {
    const step = this.steps[index];
    const { length } = step.ids;
    const first = step.block * length;
    if (length > 1) {
      const shown = this.#lengthOf(step);
      const cut = (value) => (Array.isArray(value) && value.length === length ? value.slice(0, shown) : value);
      return { first, ...Object.fromEntries(Object.entries(step).map(([name, value]) => [name, cut(value)])) };
    }
    const shown = this.steps.slice(Math.max(0, index - BEFORE), index + 1);
    const earlier = shown.slice(0, -1);
    return {
      ...step,
      first: first - earlier.length,
      ids: shown.flatMap((one) => one.ids),
      anchor: [...earlier.map(() => true), ...step.anchor],
      top_tokens: [...earlier.map(({ ids }) => [[[ids[0], this.token(ids[0]), 1]]]), ...step.top_tokens],
      transition: shown.flatMap((one) => one.transition),
      path: shown.flatMap((one) => one.path),
      fixed: [...earlier.map(() => false), ...step.fixed],
      infilled: [...earlier.map(() => false), ...step.infilled],
      ...Object.fromEntries(OF_DRAWN.map((name) => [name, shown.flatMap((one) => one[name] ?? [])])),
    };
  }

  /** What a cycle of mode lossless drafted: { text, kind: accepted | refused }; undefined for other steps. */
  draftAt(index) {
    const { drafted_texts: texts, accepted } = this.steps[index] ?? {};
    return texts?.map((text, i) => ({ text, kind: accepted[i] ? "accepted" : "refused" }));
  }

  /** A sentence about a step. */
  describe(index) {
    const draft = this.draftAt(index);
    if (draft) {
      const taken = draft.filter(({ kind }) => kind === "accepted").length;
      return `Cycle ${index + 1}: ${taken} of ${draft.length} drafted tokens accepted`;
    }
    const { block, step, ids, fixed, anchor } = this.graphAt(index);
    const now = ids.filter((_, i) => fixed[i]).map((id) => `“${this.token(id).trim()}”`);
    if (this.steps[index].ids.length === 1) return `Position ${block}: ${now}`;
    const known = ids.filter((_, i) => fixed[i] || anchor[i]).length;
    const what = now.length ? `keeps ${now.join(", ")}` : "keeps nothing";
    return `Block ${block}, pass ${step + 1} ${what}; ${known} of ${ids.length} known`;
  }

  toJSON() {
    const { model, parts, request, text, gaps, reason, usage, figures } = this;
    const steps = this.steps.map(({ written, ...step }) => step);
    return { model: model.id, parts, request, text, gaps, finish_reason: reason, usage, dadlm: figures, steps };
  }
}
