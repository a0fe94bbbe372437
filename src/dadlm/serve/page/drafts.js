// What a cycle of lossless decoding drafted, and what became of it.

/** The drafted tokens: { text, kind: accepted | refused | drafted }; none where a step has no draft. */
export function draftOf({ drafted, accepted }, token) {
  if (!Array.isArray(drafted)) return [];
  return drafted.map((one, i) => {
    const text = typeof one === "number" ? token(one) : String(Array.isArray(one) ? one[1] : one);
    return { text, kind: accepted === undefined ? "drafted" : isTaken(accepted, i) ? "accepted" : "refused" };
  });
}

/** `accepted`: how many from the left, which they are, or yes or no for each. */
function isTaken(accepted, i) {
  if (!Array.isArray(accepted)) return i < accepted;
  return typeof accepted[0] === "boolean" ? accepted[i] : i < accepted.length;
}
