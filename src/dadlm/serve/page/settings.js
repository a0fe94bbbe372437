// The controls as data: which apply, what is sent to the server, and the link that brings them back.

const diffuses = (families) => families.some((family) => family !== "ar");

// Who shows a control; one that is not listed is always there.
const APPLIES = {
  model: ({ mode }) => mode !== "race",
  in_turn: ({ mode }) => mode === "race",
  max_tokens: ({ mode }) => mode !== "infill",
  sampler: (_, families) => diffuses(families),
  steps: ({ sampler }, families) => sampler === "random" && diffuses(families),
  threshold: ({ sampler }, families) => sampler === "confidence" && diffuses(families),
  infill_k: (_, families) => diffuses(families),
  infill_r: ({ infill_k }, families) => Boolean(infill_k) && diffuses(families),
  path: (_, families) => families.includes("dadlm"),
};

export function applies(name, values, families) {
  return name in APPLIES ? APPLIES[name](values, families) : true;
}

export function valuesOf(form) {
  return Object.fromEntries(new FormData(form));
}

/** The decoding options of a request to a model of this family, under the names of the API. */
export function optionsFor(values, family) {
  const options = {};
  for (const name of ["max_tokens", "seed", "steps", "threshold", "temperature", "top_p"]) {
    if (values[name] && applies(name, values, [family])) options[name] = Number(values[name]);
  }
  for (const name of ["sampler", "path"]) {
    if (applies(name, values, [family])) options[name] = values[name];
  }
  if (values.infill_k && applies("infill_k", values, [family])) {
    options.infill = [Number(values.infill_k), Number(values.infill_r)];
  }
  return options;
}

/** Everything that makes the run, and the step that is looked at, as the part of the address after #. */
export function hashOf(values, families, step) {
  const kept = Object.entries(values).filter(([name]) => applies(name, values, families));
  const hash = new URLSearchParams(kept);
  if (step !== null) hash.set("step", step);
  return `#${hash}`;
}

/** Put the values of a link into the form; tells the step it points at, or null where there is no link. */
export function takeHash(form, hash) {
  const linked = new URLSearchParams(hash.slice(1));
  if (!linked.has("seed")) return null;
  for (const field of form.elements) {
    if (!field.name) continue;
    const value = linked.get(field.name);
    if (field.type === "checkbox") field.checked = value !== null;
    else if (field.type === "radio") {
      const known = [...form.elements[field.name]].some((one) => one.value === value);
      field.checked = known ? field.value === value : field.defaultChecked;
    } else if (value !== null) field.value = value;
    else if (field.tagName !== "SELECT") field.value = field.defaultValue;
    else if (field.name !== "model") field.selectedIndex = 0; // the models have no default
  }
  return { step: linked.has("step") ? Math.trunc(Number(linked.get("step"))) || 0 : Infinity };
}
