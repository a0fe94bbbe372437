// Making and finding elements. Text always goes in as text: nothing from a prompt, a model or a server is read as HTML.

export function make(tag, { text, ...properties } = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  if (text !== undefined) made.textContent = text;
  made.append(...children);
  return made;
}

/** Every element with an id, under that id in camel case. */
export function byId() {
  const all = [...document.querySelectorAll("[id]")];
  return Object.fromEntries(all.map((one) => [one.id.replace(/-(.)/g, (_, letter) => letter.toUpperCase()), one]));
}

/** A horizontal bar filled to a share in [0, 1]. */
export function bar(share) {
  const made = make("i", { className: "bar" });
  made.style.setProperty("--share", Math.min(1, Math.max(0, share)));
  return made;
}
