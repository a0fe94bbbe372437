// The form: the server's models and samplers, settings as far as they apply, and links to a run.

import { make } from "./dom.js";
import { exampleFor, inOrder, inWords, isTour, laneName, modeInWords } from "./models.js";
import { isOf, requestOptions, stateOf } from "./options.js";
import { listModels } from "./server.js";

const WORDS = {
  write: { run: "Write", prompt: "Prompt" },
  race: { run: "Race", prompt: "Prompt for all" },
  infill: { run: "Fill the gaps", prompt: "Text with gaps" },
};
const keyOf = ({ model, mode }) => `${model.id} ${mode}`; // of a lane

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

  /** All values, also those without effect. */
  get values() {
    const values = { lane: [] };
    for (const { name, type, value, checked } of this.form.elements) {
      if (!name || ((type === "radio" || type === "checkbox") && !checked)) continue;
      if (name === "lane") values.lane.push(value);
      else values[name] = value;
    }
    return values;
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
    [this.models, this.samplers] = [inOrder(data), dadlm.samplers];
    const { model, sampler } = this.form.elements;
    model.replaceChildren(
      ...this.models.map((one) => make("option", { value: one.id, text: `${one.id}: ${inWords(one)}` })),
    );
    sampler.replaceChildren(
      ...this.samplers.map(({ name }) =>
        make("option", { value: name, text: name, defaultSelected: name === "dilated" }),
      ),
    );
    const options = new Map(this.samplers.flatMap(({ options }) => options.map((one) => [one.name, one])));
    sampler.closest("label").after(...[...options.values()].map(control));
    this.page.lanes.append(...this.#allLanes().map((lane) => this.#laneChoice(lane)));
    this.show();
  }

  #allLanes() {
    return this.models.flatMap((model) => model.dadlm.modes.map((mode) => ({ model, mode })));
  }

  #laneChoice(lane) {
    const { model, mode } = lane;
    // The others have another vocabulary, or write the same text in another way.
    const defaultChecked = isTour(model) === isTour(this.models[0]) && mode === model.dadlm.modes[0];
    const box = make("input", { type: "checkbox", name: "lane", value: keyOf(lane), defaultChecked });
    return make("label", { className: "check", title: inWords(model) }, box, laneName(lane));
  }

  /** The lanes of these values: models, each with a mode. */
  lanes(values) {
    if (values.task === "race") return this.#allLanes().filter((lane) => values.lane.includes(keyOf(lane)));
    return this.models.filter(({ id }) => id === values.model).map((model) => {
      const { modes } = model.dadlm;
      return { model, mode: modes.includes(values.mode) && values.task === "write" ? values.mode : modes[0] };
    });
  }

  /** The settings of a request to one lane. */
  optionsFor(values, lane) {
    return requestOptions(values, lane, this.samplers);
  }

  /** The part of an address after # that holds a run's settings and one of its steps. */
  link(values, step) {
    const lanes = this.lanes(values);
    const kept = Object.entries(values).filter(([name]) => this.#state(name, values, lanes)[0] === "shown");
    const pairs = kept.flatMap(([name, value]) => [value].flat().map((one) => [name, one]));
    const hash = new URLSearchParams(pairs);
    if (step !== null) hash.set("step", step);
    return `#${hash}`;
  }

  /** Set the controls as a link says; returns { step } that it points at, or null if this is no link. */
  follow(hash) {
    const linked = new URLSearchParams(hash.slice(1));
    if (!linked.has("seed")) return null;
    this.form.elements.model.value = linked.get("model") ?? this.models[0]?.id;
    this.#offerModes();
    for (const field of this.form.elements) {
      if (field.name && field.name !== "model") fill(field, linked.getAll(field.name), this.form);
    }
    this.show();
    return { step: linked.has("step") ? Math.trunc(Number(linked.get("step"))) || 0 : Infinity };
  }

  /** Choose a lane for Write, with its steps. */
  choose({ model, mode }) {
    this.form.elements.task.value = "write";
    this.form.elements.trace.checked = true;
    this.form.elements.model.value = model.id;
    this.#offerModes();
    this.form.elements.mode.value = mode;
    this.show();
  }

  /** Show the controls that apply, and say why others do not. */
  show() {
    this.#disableAr();
    this.#offerModes();
    const { values } = this;
    const chosen = this.lanes(values);
    const lanes = chosen.length ? chosen : this.#allLanes();
    if (lanes.length) this.#suggest(values, lanes);
    const reasons = new Map();
    for (const field of this.form.querySelectorAll("[data-field]")) {
      const [state, why] = this.#state(field.dataset.field, values, lanes);
      field.hidden = state === "hidden";
      field.title = state === "disabled" ? `Without effect: ${why}` : (field.dataset.title ?? "");
      for (const input of field.querySelectorAll("input, select, button")) input.disabled = state !== "shown";
      if (why) reasons.set(why, [...(reasons.get(why) ?? []), nameOf(field)]);
    }
    this.page.unused.textContent = [...reasons]
      .map(([why, names]) => `Without effect, as ${why}: ${names.join(", ")}.`).join(" ");
    this.page.promptLabel.textContent = WORDS[values.task].prompt;
    this.page.run.textContent = WORDS[values.task].run;
    this.page.notation.hidden = values.task !== "infill";
    this.page.samplerSummary.textContent = this.form.elements.sampler.disabled ? "" : this.#summary(values.sampler);
  }

  /** What a sampler does, its options under their names on the page. */
  #summary(sampler) {
    const summary = this.samplers.find(({ name }) => name === sampler)?.summary;
    return summary ? `A pass keeps ${summary.replace(/`(\w+)`/g, (_, name) => `“${this.nameOf(name)}”`)}.` : "";
  }

  /** The name that a setting of the API has on the page. */
  nameOf(setting) {
    const name = setting === "parts" ? "prompt" : CSS.escape(setting);
    const field = this.form.querySelector(`[data-field="${name}"]`);
    return field ? nameOf(field) : setting;
  }

  /** An example and settings that suit the models, as defaults. */
  #suggest({ task }, lanes) {
    const { prompt, max_tokens: tokens, steps } = this.form.elements;
    const example = exampleFor(lanes[0].model);
    prompt.defaultValue = task === "infill" ? example.infill : example.write;
    tokens.defaultValue = example.max_tokens;
    if (!steps) return;
    steps.defaultValue = example.steps;
    steps.max = Math.max(...lanes.map(({ model }) => model.dadlm.block_size));
  }

  #state(name, values, lanes) {
    return stateOf(name, values, lanes, this.samplers);
  }

  /** An autoregressive model cannot fill gaps. */
  #disableAr() {
    const { model, task } = this.form.elements;
    [...model.options].forEach((option, n) => {
      option.disabled = task.value === "infill" && this.models[n].dadlm.family === "ar";
    });
    if (model.selectedOptions[0]?.disabled) {
      model.value = [...model.options].find(({ disabled }) => !disabled)?.value ?? "";
    }
  }

  /** The modes of the chosen model; only blocks can be filled in anywhere. */
  #offerModes() {
    const { model, mode, task } = this.form.elements;
    const modes = this.models.find(({ id }) => id === model.value)?.dadlm.modes ?? [];
    const offered = task.value === "infill" ? modes.slice(0, 1) : modes;
    if ([...mode.options].map(({ value }) => value).join() === offered.join()) return;
    const before = mode.value;
    mode.replaceChildren(...offered.map((one) => make("option", { value: one, text: modeInWords(one) })));
    if (offered.includes(before)) mode.value = before;
  }
}

/** Set a field to the values of a link, or to its default. */
function fill(field, values, form) {
  if (field.type === "checkbox") {
    const isSaid = values.length || (field.name !== "lane" && isOf(field.name, form.elements.task.value));
    field.checked = isSaid ? values.includes(field.value) : field.defaultChecked;
  } else if (field.type === "radio") {
    const known = [...form.elements[field.name]].some((one) => values.includes(one.value));
    field.checked = known ? values.includes(field.value) : field.defaultChecked;
  } else if (field.tagName === "SELECT") {
    const options = [...field.options];
    const found = options.findIndex(({ value }) => values.includes(value));
    field.selectedIndex = found >= 0 ? found : Math.max(0, options.findIndex((one) => one.defaultSelected));
  } else field.value = values[0] ?? field.defaultValue;
}

function nameOf(field) {
  return (field.querySelector("label, span, legend") ?? field).firstChild.textContent.trim();
}

/** A number field for an option of a sampler. */
function control({ name, description, type, minimum, maximum, default: value }) {
  const words = name.replaceAll("_", " ");
  const field = make("label", { text: words.charAt(0).toUpperCase() + words.slice(1) });
  const step = type === "integer" ? "1" : "any";
  const bounds = { min: minimum ?? "", max: maximum ?? "", step };
  field.append(
    make("input", { name, type: "number", ...bounds, defaultValue: value ?? "", placeholder: "default" }),
  );
  Object.assign(field.dataset, { field: name, title: description });
  return field;
}
