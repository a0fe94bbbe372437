// Texts with gaps, written as [[5]] on the page.

const MOST_PARTS = 256; // what the server takes

export class GapError extends Error {
  /** `place`: [begin, end] of the faulty part of the text. */
  constructor(message, place = null) {
    super(message);
    this.place = place;
  }
}

/** Split a text into strings and numbers, the lengths of its gaps. */
export function partsOf(text, context) {
  for (const { 0: written, 1: inside, index } of text.matchAll(/\[\[(.*?)(\]\]|$)/gms)) {
    const place = [index, index + written.length];
    if (!/^\[\[\d+\]\]$/.test(written)) {
      const short = written.length > 20 ? `${written.slice(0, 20)}…` : written;
      throw new GapError(`“${short}” is not a gap. Write how many tokens are missing, as in [[3]].`, place);
    }
    if (Number(inside) === 0) throw new GapError(`${written}: a gap has at least one token.`, place);
  }
  const parts = text.split(/\[\[(\d+)\]\]/).flatMap((part, n) => (n % 2 ? [Number(part)] : part ? [part] : []));
  const gaps = parts.filter((part) => typeof part === "number");
  if (!gaps.length) throw new GapError("The text has no gap. Write [[3]] where three tokens are missing.");
  if (gaps.reduce((sum, gap) => sum + gap, 0) > context) {
    throw new GapError(`The gaps are longer than the context of ${context} tokens.`);
  }
  if (parts.length > MOST_PARTS) throw new GapError(`The text has too many gaps: ${gaps.length}.`);
  return parts;
}
