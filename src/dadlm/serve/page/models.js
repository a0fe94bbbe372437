// Models in words, and examples that suit them.

const FAMILIES = { ar: "autoregressive", mdlm: "MDLM", bd3lm: "BD3LM", dadlm: "DA-DLM" };
const MODES = {
  diffusion: "blocks (diffusion)",
  ar: "token by token (ar)",
  lossless: "checked drafts (lossless)",
};
const TOUR = {
  write: "quiet poets repair mountains ",
  infill: "quiet poets repair mountains [[4]]",
  max_tokens: 12,
  steps: 1,
};
const TEXT = {
  write: "The history of",
  infill: "The history of the[[4]] began in the[[2]] century.",
  max_tokens: 45, // with this prompt, three blocks of 16
};

/** A model of `dadlm tour`: its language has a few dozen words. */
export const isTour = ({ id }) => id.startsWith("tour");

/** The models, first the one to begin with. */
export function inOrder(models) {
  const first = models.find((one) => isTour(one) && one.dadlm.family === "dadlm") ?? models[0];
  return [first, ...models.filter((one) => one !== first)];
}

/** { write, infill, max_tokens, steps } for a model. */
export function exampleFor(model) {
  const { block_size: block, context } = model.dadlm;
  if (isTour(model)) return TOUR;
  const tokens = Math.min(TEXT.max_tokens, Math.floor(context / 2));
  return { ...TEXT, max_tokens: tokens, steps: Math.ceil(block / 2) };
}

export function modeInWords(mode) {
  return MODES[mode] ?? mode;
}

/** A model's name, with the mode if it is not the default. */
export function laneName({ model, mode }) {
  return mode === model.dadlm.modes[0] ? model.id : `${model.id}, ${mode}`;
}

/** "DA-DLM, blocks of 16, 4 candidates, token edges, 10.2M parameters". */
export function inWords({ dadlm }) {
  const { family, block_size: block, candidates, edges, parameters } = dadlm;
  return [
    FAMILIES[family] ?? family,
    family === "bd3lm" || family === "dadlm" ? `blocks of ${block}` : "",
    candidates > 1 ? `${candidates} candidates` : "",
    edges ? "token edges" : "",
    parameters ? `${count(parameters)} parameters` : "",
  ].filter(Boolean).join(", ");
}

function count(parameters) {
  const [size, unit] = parameters >= 1e9 ? [1e9, "B"] : parameters >= 1e6 ? [1e6, "M"] : [1e3, "k"];
  const rounded = parameters / size;
  return `${rounded < 100 ? Number(rounded.toPrecision(3)) : Math.round(rounded)}${unit}`;
}
