// Pieces of a picture: elements, labels, and texts shortened to fit.

const ruler = document.createElement("canvas").getContext("2d");

export function percent(p) {
  if (p < 0.01) return "<1%";
  return p > 0.99 && p < 1 ? ">99%" : `${Math.round(100 * p)}%`;
}

/** A space at the edge of a token becomes visible. */
export function shown(text) {
  return text.replace(/^ +| +$/g, (spaces) => "·".repeat(spaces.length));
}

/** As much of a token as fits. */
export function fit(text, width, look, colours) {
  ruler.font = `${look["font-weight"] ?? 400} ${look["font-size"] ?? 12}px ${colours.font}`;
  const signs = [...shown(text)];
  if (ruler.measureText(signs.join("")).width <= width) return signs.join("");
  while (signs.length > 1 && ruler.measureText(`${signs.join("")}…`).width > width) signs.pop();
  return `${signs.join("")}…`;
}

export function round(x) {
  return Math.round(100 * x) / 100;
}

export function label(x, y, text, look) {
  const written = element("text", { x, y, "text-anchor": "middle", ...look });
  written.textContent = text;
  return written;
}

export function element(name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}
