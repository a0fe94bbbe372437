// Light or dark, and the colours of the style sheet as values that a picture can carry with it.

const NAMES = ["surface", "line", "edge", "ink", "faint", "anchor", "on-anchor", "path", "fixed", "infilled"];
const system = matchMedia("(prefers-color-scheme: dark)");

export function palette() {
  const probe = document.createElement("span");
  document.body.append(probe);
  const colours = {};
  for (const name of NAMES) {
    probe.style.color = `var(--${name})`;
    colours[name] = getComputedStyle(probe).color;
  }
  colours.font = getComputedStyle(document.body).fontFamily.replaceAll('"', "'");
  probe.remove();
  return colours;
}

/** Let a button switch between light and dark; `changed` is called whenever the colours are others. */
export function themeSwitch(button, changed) {
  const root = document.documentElement;
  const show = () => {
    button.setAttribute("aria-pressed", isDark());
    changed();
  };
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    show();
  });
  system.addEventListener("change", show);
  button.setAttribute("aria-pressed", isDark());
}

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : system.matches;
}
