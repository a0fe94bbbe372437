// A run as data: the request, its steps and text, and what follows from them. No drawing.

const BEFORE = 7; // how many earlier tokens are drawn before one that is decided alone

export class Run {
  /** `parts` is the request's text: strings, and numbers for gaps to fill; a prompt is its only part. */
  constructor(model, parts, request) {
    Object.assign(this, { model, parts, request });
    this.steps = [];
    this.text = "";
    this.gaps = null;
    this.usage = null;
    this.figures = {};
    this.reason = null;
    this.textOf = new Map(); // token id → how it is written
    this.given = new Map(); // block → which of its positions were known from the start
  }

  /** Take in one object of the server's stream. */
  take(chunk) {
    const choice = chunk.choices?.[0];
    if (choice?.text) this.text += choice.text;
    if (choice?.finish_reason) this.reason = choice.finish_reason;
    if (chunk.gaps) this.gaps = chunk.gaps;
    if (chunk.text !== undefined) Object.assign(this, { text: chunk.text, reason: "stop" }); // all gaps filled
    if (chunk.usage) this.usage = chunk.usage;
    const { step, ...figures } = chunk.dadlm ?? {};
    Object.assign(this.figures, figures);
    if (step) this.#takeStep(step);
  }

  #takeStep(step) {
    for (const [id, text] of step.top_tokens.flat(2)) this.textOf.set(id, text);
    step.texts?.forEach((text, i) => this.textOf.set(step.ids[i], text));
    if (!this.given.has(step.block)) this.given.set(step.block, step.anchor);
    // For the text as it stood at this step; not part of the event.
    this.steps.push({ ...step, written: this.text.length });
  }

  get isOver() {
    return this.reason !== null;
  }

  /** Forward passes so far: sent with each block; each traced step is one. */
  get passes() {
    return Math.max(this.figures.forward_passes ?? 0, this.steps.length);
  }

  /** Tokens so far. */
  get tokens() {
    if (this.usage) return this.usage.completion_tokens;
    const decided = this.steps.reduce((sum, { fixed }) => sum + fixed.filter(Boolean).length, 0);
    return Math.max(this.figures.tokens ?? 0, decided);
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

  #openPositions(step) {
    const given = this.given.get(step.block);
    return step.ids.flatMap((id, i) => (given[i] ? [] : [this.#piece(step, i)]));
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
      if (atEnd && text !== undefined) return [{ kind: "text", text }];
      return [...pieces, ...Array(part - pieces.length).fill({ kind: "mask", text: "" })];
    });
  }

  /** The step to draw. Where tokens are decided one by one, those before it stand there as anchors. */
  graphAt(index) {
    const step = this.steps[index];
    const first = step.block * step.ids.length;
    if (step.ids.length > 1) return { ...step, first };
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
      ...Object.fromEntries(
        ["texts", "drawn", "probability", "alone"].map((name) => [name, shown.flatMap((one) => one[name] ?? [])]),
      ),
    };
  }

  /** A sentence about a step. */
  describe(index) {
    const step = this.steps[index];
    const now = step.ids.filter((_, i) => step.fixed[i]).map((id) => `“${this.token(id).trim()}”`);
    if (step.ids.length === 1) return `Position ${step.block}: ${now}`;
    const known = step.ids.filter((_, i) => step.fixed[i] || step.anchor[i]).length;
    const what = now.length ? `fixes ${now.join(", ")}` : "fixes nothing";
    return `Block ${step.block}, step ${step.step} ${what}; ${known} of ${step.ids.length} known`;
  }

  toJSON() {
    const { model, parts, request, text, gaps, reason, usage, figures } = this;
    const steps = this.steps.map(({ written, ...step }) => step);
    return { model: model.id, parts, request, text, gaps, finish_reason: reason, usage, dadlm: figures, steps };
  }
}

/** Split a text with gaps written as [[5]] into strings and numbers. */
export function partsOf(text) {
  return text.split(/\[\[(\d+)\]\]/).flatMap((part, n) => (n % 2 ? [Number(part)] : part ? [part] : []));
}
