// Probabilities of a step, from its transitions and tokens.

/** [N][K]: how likely a path is to come through each node. */
export function reach(step) {
  let before = [1]; // the start-of-block node
  return step.top_tokens.map((group, i) => {
    const here = group.map((tokens, k) =>
      tokens.length ? before.reduce((sum, mass, j) => sum + mass * step.transition[i][j][k], 0) : 0,
    );
    before = here;
    return here;
  });
}

/** The token that was drawn at node k of group i: { id, text, given, alone }; null if none was. */
export function drawnAt(step, i, k) {
  const id = step.path[i] === k ? step.drawn?.[i] ?? null : null;
  if (id === null) return null;
  return { id, text: step.drawn_texts?.[i] || `#${id}`, given: step.probability[i], alone: step.alone[i] };
}

/** The tokens of a node: { text, given, alone, isDrawn }, first the one that was drawn, then the likeliest. */
export function tokensAt(step, i, k) {
  const drawn = drawnAt(step, i, k);
  const others = step.top_tokens[i][k].filter(([id]) => id !== drawn?.id);
  return [
    ...(drawn ? [{ ...drawn, isDrawn: true }] : []),
    ...others.map(([, text, p]) => ({ text, given: p, alone: p, isDrawn: false })),
  ];
}

/** Whether tokens of a step depend on the ones to their left. */
export function hasEdges(step) {
  return Boolean(step.probability?.some((p, i) => p !== step.alone[i]));
}

/** The edges into group i: { from, to, probability, flow, lit }. */
export function edgesInto(step, i, reached) {
  const sources = i ? reached[i - 1] : [1];
  return sources.flatMap((mass, from) => {
    if (i && !step.top_tokens[i - 1][from].length) return [];
    return step.top_tokens[i].flatMap((tokens, to) => {
      if (!tokens.length) return [];
      const probability = step.transition[i][from][to];
      const lit = step.path[i] === to && (i === 0 || step.path[i - 1] === from);
      return [{ from, to, probability, flow: mass * probability, lit }];
    });
  });
}
