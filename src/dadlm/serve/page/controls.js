// The form: the server's models and samplers, the controls that apply, what is sent, and links to a run.

import { make } from "./dom.js";
import { listModels } from "./server.js";

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
const diffuses = (families) => families.some((family) => family !== "ar");
const both = ({ dadlm }) => dadlm.modes.length > 1;

// When a control is shown; those not listed here, and not an option of a sampler, always are.
const APPLIES = {
  model: ({ mode }) => mode !== "race",
  in_turn: ({ mode }) => mode === "race",
  as_ar: ({ mode }, _, models) => mode === "write" && models.some(both),
  max_tokens: ({ mode }) => mode !== "infill",
  sampler: (_, families) => diffuses(families),
  infill_k: (_, families) => diffuses(families),
  infill_r: ({ infill_k }, families) => Boolean(infill_k) && diffuses(families),
  path: (_, families) => families.includes("dadlm"),
};

export class Controls {
  models = [];
  samplers = [];
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
    return Object.fromEntries(new FormData(this.form));
  }

  /** Ask the server for its models and samplers, once; again only after an error. */
  load(key) {
    this.#loading ??= this.#load(key).catch((error) => {
      this.#loading = null;
      throw error;
    });
    return this.#loading;
  }

  async #load(key) {
    const { data, dadlm } = await listModels(key);
    [this.models, this.samplers] = [data, dadlm.samplers];
    const { model, sampler, max_tokens: tokens } = this.form.elements;
    model.replaceChildren(
      ...data.map(({ id, dadlm }) => make("option", { value: id, text: `${id} (${dadlm.family})` })),
    );
    sampler.replaceChildren(...this.samplers.map(({ name }) => make("option", { value: name, text: name })));
    const options = new Map(this.samplers.flatMap(({ options }) => options.map((one) => [one.name, one])));
    this.page.samplerOptions.replaceChildren(...[...options.values()].map(control));
    const context = Math.min(...data.map(({ dadlm }) => dadlm.context));
    tokens.defaultValue = Math.min(TOKENS, Math.floor(context / 2)); // keeps what has been typed already
    this.show();
  }

  /** The models that these values are about. */
  chosen(values) {
    return values.mode === "race" ? this.models : this.models.filter(({ id }) => id === values.model);
  }

  /** The family that a model decodes as: one that can do both as an AR model, if that is chosen. */
  familyOf(values, model) {
    return values.as_ar && values.mode === "write" && both(model) ? "ar" : model.dadlm.family;
  }

  /** The decoding options of a request to a model of this family, under the names of the API. */
  optionsFor(values, family) {
    const sampled = this.samplers.flatMap(({ options }) => options.map(({ name }) => name));
    const options = {};
    for (const name of ["max_tokens", "seed", "temperature", "top_p", ...sampled]) {
      if (values[name] && this.#applies(name, values, [family])) options[name] = Number(values[name]);
    }
    for (const name of ["sampler", "path"]) {
      if (this.#applies(name, values, [family])) options[name] = values[name];
    }
    if (family === "ar" && values.as_ar) options.mode = "ar";
    if (values.infill_k && this.#applies("infill_k", values, [family])) {
      options.infill = [Number(values.infill_k), Number(values.infill_r)];
    }
    return options;
  }

  /** The part of an address after # that repeats a run and shows one of its steps. */
  link(values, step) {
    const families = this.#families(values);
    const kept = Object.entries(values).filter(([name]) => this.#applies(name, values, families));
    const hash = new URLSearchParams(kept);
    if (step !== null) hash.set("step", step);
    return `#${hash}`;
  }

  /** Set the controls as a link says; gives the step it points at, or null if there is no link. */
  follow(hash) {
    const linked = new URLSearchParams(hash.slice(1));
    const isLink = linked.has("seed");
    for (const field of isLink ? this.form.elements : []) {
      if (!field.name) continue;
      const value = linked.get(field.name);
      if (field.type === "checkbox") field.checked = value !== null;
      else if (field.type === "radio") {
        const known = [...this.form.elements[field.name]].some((one) => one.value === value);
        field.checked = known ? field.value === value : field.defaultChecked;
      } else if (value !== null) field.value = value;
      else if (field.tagName !== "SELECT") field.value = field.defaultValue;
      else if (field.name !== "model") field.selectedIndex = 0; // the models have no default
    }
    this.show();
    if (!isLink) return null;
    return { step: linked.has("step") ? Math.trunc(Number(linked.get("step"))) || 0 : Infinity };
  }

  /** Choose a mode and a model. */
  choose(mode, model) {
    this.form.elements.mode.value = mode;
    this.form.elements.model.value = model;
    this.show();
  }

  /** Show the controls that apply. */
  show() {
    this.#disableAr();
    const { values } = this;
    const families = this.#families(values);
    for (const field of this.form.querySelectorAll("[data-field]")) {
      field.hidden = !this.#applies(field.dataset.field, values, families);
    }
    const { run, prompt, example } = WORDS[values.mode];
    this.page.promptLabel.textContent = prompt;
    this.page.prompt.placeholder = example;
    this.page.run.textContent = run;
    this.page.samplerSummary.textContent = this.#sampler(values)?.summary ?? "";
  }

  #sampler(values) {
    return this.samplers.find(({ name }) => name === values.sampler);
  }

  #applies(name, values, families) {
    const has = (sampler) => sampler?.options.some((option) => option.name === name);
    if (this.samplers.some(has)) return diffuses(families) && Boolean(has(this.#sampler(values)));
    return name in APPLIES ? APPLIES[name](values, families, this.chosen(values)) : true;
  }

  /** An autoregressive model cannot fill gaps. */
  #disableAr() {
    const { model, mode } = this.form.elements;
    [...model.options].forEach((option, n) => {
      option.disabled = mode.value === "infill" && this.models[n].dadlm.family === "ar";
    });
    if (model.selectedOptions[0]?.disabled) {
      model.value = [...model.options].find(({ disabled }) => !disabled)?.value ?? "";
    }
  }

  #families(values) {
    return this.chosen(values).map((model) => this.familyOf(values, model));
  }
}

/** A number field for an option of a sampler. */
function control({ name, description, type, minimum, maximum, default: value }) {
  const words = name.replaceAll("_", " ");
  const field = make("label", { title: description, text: words.charAt(0).toUpperCase() + words.slice(1) });
  const step = type === "integer" ? "1" : "any";
  const bounds = { min: minimum ?? "", max: maximum ?? "", step, defaultValue: value ?? "", placeholder: "default" };
  field.append(make("input", { name, type: "number", ...bounds }));
  field.dataset.field = name;
  return field;
}
