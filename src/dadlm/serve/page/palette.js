// Light or dark, and the style sheet's colours as values that a picture can carry with it.

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

/** Let a button switch between light and dark; `changed` is called whenever the colours change. */
export function themeSwitch(button, changed) {
  const name = () => (button.textContent = `Switch to ${isDark() ? "light" : "dark"}`);
  const show = () => {
    name();
    changed();
  };
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    show();
  });
  system.addEventListener("change", show);
  name();
}

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : system.matches;
}
