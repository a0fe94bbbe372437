// The form: the models that the server has, and the controls that apply to what is chosen.

import { make } from "./dom.js";
import { listModels } from "./server.js";
import { applies, hashOf, takeHash, valuesOf } from "./settings.js";

const WORDS = {
  write: { run: "Write", prompt: "Prompt", example: "How the text begins" },
  race: { run: "Race", prompt: "Prompt", example: "How every text begins" },
  infill: {
    run: "Fill the gaps",
    prompt: "Text with gaps: [[5]] is one of five tokens",
    example: "The fox[[3]] the river.",
  },
};
const TOKENS = 64; // to write, unless the context is short

export class Controls {
  models = [];
  #loading = null;

  constructor(page) {
    this.page = page;
    this.form = page.controls;
    this.form.addEventListener("input", () => this.show());
    page.prompt.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.form.requestSubmit();
    });
    page.newSeed.addEventListener("click", () => {
      page.seed.value = crypto.getRandomValues(new Uint32Array(1))[0] >>> 1;
    });
  }

  get values() {
    return valuesOf(this.form);
  }

  /** Ask the server for its models, once, however many wait for them; again only after a refusal. */
  load(key) {
    this.#loading ??= this.#load(key).catch((error) => {
      this.#loading = null;
      throw error;
    });
    return this.#loading;
  }

  async #load(key) {
    this.models = await listModels(key);
    const { model, max_tokens: tokens } = this.form.elements;
    model.replaceChildren(
      ...this.models.map(({ id, dadlm }) => make("option", { value: id, text: `${id} (${dadlm.family})` })),
    );
    const context = Math.min(...this.models.map(({ dadlm }) => dadlm.context));
    const some = Math.min(TOKENS, Math.floor(context / 2));
    tokens.defaultValue = some; // who was quicker has typed another, which stays
    this.show();
  }

  /** The models that these values are about. */
  chosen(values) {
    return values.mode === "race" ? this.models : this.models.filter(({ id }) => id === values.model);
  }

  /** The part of an address that makes a run again and shows one of its steps. */
  link(values, step) {
    return hashOf(values, this.#families(values), step);
  }

  /** Set everything as a link says; tells the step it shows, or null if there is no link. */
  follow(hash) {
    const linked = takeHash(this.form, hash);
    this.show();
    return linked;
  }

  /** Choose a mode and a model. */
  choose(mode, model) {
    this.form.elements.mode.value = mode;
    this.form.elements.model.value = model;
    this.show();
  }

  /** Only what applies. */
  show() {
    this.#leaveOutAr();
    const { values } = this;
    const families = this.#families(values);
    for (const field of this.form.querySelectorAll("[data-field]")) {
      field.hidden = !applies(field.dataset.field, values, families);
    }
    const { run, prompt, example } = WORDS[values.mode];
    this.page.promptLabel.textContent = prompt;
    this.page.prompt.placeholder = example;
    this.page.run.textContent = run;
  }

  /** An autoregressive model cannot fill gaps: it never sees what follows them. */
  #leaveOutAr() {
    const { model, mode } = this.form.elements;
    [...model.options].forEach((option, n) => {
      option.disabled = mode.value === "infill" && this.models[n].dadlm.family === "ar";
    });
    if (model.selectedOptions[0]?.disabled) {
      model.value = [...model.options].find(({ disabled }) => !disabled)?.value ?? "";
    }
  }

  #families(values) {
    return this.chosen(values).map(({ dadlm }) => dadlm.family);
  }
}
