// Sentences of the page.

export const ENDS = {
  stop: "Done: end of text.",
  length: "Done: all tokens written.",
  filled: "Done: the gaps are filled.",
};

export const INVITATIONS = {
  write: "Write continues the prompt, and draws the graph of every pass.",
  race: "Race lets the models write on from the same prompt with the same seed, and measures time and passes.",
  infill: "Fill the gaps writes what is missing anywhere in a text.",
};

const INDEPENDENT = `A column is a position with its prediction. Nothing links the columns: tokens of one pass are
  drawn independently.`;

/** What one sees in the graph of a family; `tour`: what to look for in its language. */
export const MEANINGS = {
  dadlm: `A column is a position, a box one of its candidates, a line the probability of going from one candidate
    to the next. The highlighted path was chosen; a box on it shows the token that was drawn there.`,
  bd3lm: INDEPENDENT,
  mdlm: INDEPENDENT,
  tour: `In the tour's language four phrases can follow a phrase, and words of different ones never fit
    together.`,
  ar: "One token after another: the likeliest tokens at the newest position, and the one that was drawn.",
};
