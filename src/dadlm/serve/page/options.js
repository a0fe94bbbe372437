// Which settings apply, and why others do not.

const OF_BLOCKS = ["sampler", "path", "nucleus", "infill_k"];
const GREEDY = ["temperature", "top_p", "nucleus"];
const OF_A_TASK = {
  model: ["write", "infill"], mode: ["write", "infill"], trace: ["write", "infill"],
  max_tokens: ["write", "race"], lane: ["race"], in_turn: ["race"],
};

/** Whether a setting belongs to a task. */
export function isOf(name, task) {
  return OF_A_TASK[name]?.includes(task) ?? true;
}

const RANK = ["shown", "disabled", "hidden"];

/** [shown | disabled | hidden, why] of a setting for several lanes: { model, mode }. */
export function stateOf(name, values, lanes, samplers) {
  const states = lanes.map((lane) => stateFor(name, values, lane, samplers));
  return states.sort(([a], [b]) => RANK.indexOf(a) - RANK.indexOf(b))[0] ?? ["shown", ""];
}

function stateFor(name, values, { model, mode }, samplers) {
  const { candidates, modes } = model.dadlm;
  const owners = samplers.filter(({ options }) => options.some((option) => option.name === name));
  if (!isOf(name, values.task)) return ["hidden", ""];
  if (name === "mode" && modes.length < 2) return ["hidden", ""];
  if (name === "infill_r" && (mode !== "diffusion" || !values.infill_k)) return ["hidden", ""];
  if (mode !== "diffusion" && (owners.length || OF_BLOCKS.includes(name))) {
    return ["hidden", owners.length ? "" : "this model or mode writes token by token"];
  }
  if (owners.length && !owners.some((sampler) => sampler.name === values.sampler)) return ["hidden", ""];
  if (candidates === 1 && (name === "path" || name === "nucleus")) {
    return ["hidden", "this model has one candidate per position"];
  }
  if (candidates === 1 && name === "transition_weight") return ["hidden", "there are no transitions"];
  if (GREEDY.includes(name) && candidates > 1 && mode === "diffusion" && values.path !== "sample") {
    return ["disabled", "the most probable tokens are taken"];
  }
  if (name !== "temperature" && GREEDY.includes(name) && Number(values.temperature) === 0) {
    return ["disabled", "temperature 0 takes the most probable token"];
  }
  if (name === "nucleus" && Number(values.top_p) >= 1) return ["disabled", "top p 1 leaves nothing out"];
  return ["shown", ""];
}

/** The settings of a request to one lane, under the names of the API. */
export function requestOptions(values, lane, samplers) {
  const has = (name) => values[name] && stateFor(name, values, lane, samplers)[0] === "shown";
  const ofSamplers = samplers.flatMap(({ options }) => options.map(({ name }) => name));
  const options = {};
  for (const name of ["max_tokens", "seed", "temperature", "top_p", ...new Set(ofSamplers)]) {
    if (has(name)) options[name] = Number(values[name]);
  }
  for (const name of ["sampler", "path", "nucleus"]) if (has(name)) options[name] = values[name];
  const { modes, block_size: block } = lane.model.dadlm;
  if (options.steps > block) options.steps = block; // a race may have models of several block sizes
  if (modes.length > 1) options.mode = lane.mode;
  if (has("infill_k")) options.infill = [Number(values.infill_k), Number(values.infill_r)];
  return options;
}
