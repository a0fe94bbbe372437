// The playground: reads the controls, asks the server, and shows the answer.

import { Controls } from "./controls.js";
import { themeSwitch } from "./palette.js";
import { Lane, race } from "./race.js";
import { partsOf, Run } from "./run.js";
import { saveJson, savePng, saveSvg } from "./save.js";
import { stream } from "./server.js";
import { showFigures, showText } from "./text.js";
import { Viewer } from "./viewer.js";

const ENDS = {
  stop: "Done: end of text.",
  length: "Done: all tokens written.",
};

// Every element with an id, under that id in camel case.
const page = {};
for (const one of document.querySelectorAll("[id]")) {
  page[one.id.replace(/-(.)/g, (_, letter) => letter.toUpperCase())] = one;
}
const controls = new Controls(page);
const viewer = new Viewer(page, showAt);
let runs = []; // on the page: one, or one for each lane
let asked = null; // the values of the controls that they were made with
let begun = 0;
let ended = null; // when the last of them finished or failed
let running = null; // aborts what runs
let unread = null; // a link that was opened before the models were loaded

page.controls.addEventListener("submit", (event) => {
  event.preventDefault();
  // Not the browser's own check: an invalid value in a hidden control would block the button.
  const shown = [...page.controls.elements].filter((field) => !field.closest("[hidden]"));
  if (shown.every((field) => field.reportValidity())) start();
});
page.controls.addEventListener("input", ({ target }) => {
  if (target !== page.key) unread = null; // typing something else discards the link
});
page.stop.addEventListener("click", () => running?.abort());
page.copyLink.addEventListener("click", copyLink);
page.saveSvg.addEventListener("click", () => saveSvg(viewer.picture(), stepName()));
page.savePng.addEventListener("click", () => savePng(viewer.picture(), stepName()).catch(report));
page.saveJson.addEventListener("click", () => saveJson(runs.length > 1 ? runs : runs[0], "dadlm-run"));
themeSwitch(page.theme, () => viewer.redraw());
addEventListener("hashchange", followLink);
followLink();

/** A link holds all settings; opening one repeats the run. */
async function followLink() {
  const { hash } = location; // as it was opened: a run started while the models load changes it
  try {
    await controls.load(page.key.value);
  } catch (error) {
    unread = hash;
    return report(error);
  }
  unread = null; // this link is the newer one
  const link = controls.follow(hash);
  if (link) await start(link.step);
}

/** Start the run that the controls describe; `step` is the one to show at the end. */
async function start(step = Infinity) {
  running?.abort();
  const mine = (running = new AbortController());
  page.problem.hidden = true;
  page.stop.disabled = false;
  page.status.textContent = "Waiting for the server …";
  page.text.ariaBusy = "true";
  try {
    await controls.load(page.key.value);
    mine.signal.throwIfAborted();
    if (unread !== null) step = controls.follow(unread)?.step ?? step;
    unread = null;
    const { values } = controls;
    if (values.mode === "race") await raceAll(values, mine.signal);
    else await writeOne(values, mine.signal, step);
  } catch (error) {
    if (mine === running) report(error);
  } finally {
    mine.abort(); // lanes that still run when another has failed
    if (mine === running) settle();
  }
}

async function writeOne(values, signal, step) {
  const [model] = controls.chosen(values);
  if (!model) throw new Error("This server does not have the model of this link. Choose another.");
  const fillsGaps = values.mode === "infill";
  const parts = fillsGaps ? partsOf(values.prompt) : [values.prompt];
  const { context } = model.dadlm; // the server refuses more too, but only after the page has drawn it
  const open = parts.reduce((sum, part) => sum + (typeof part === "number" ? part : 0), 0);
  if (open > context) throw new Error(`The gaps are longer than the context of ${context} tokens.`);
  const run = new Run(model, parts, {
    model: model.id,
    ...(fillsGaps ? { parts: parts.map(asGap) } : { prompt: values.prompt }),
    ...controls.optionsFor(values, controls.familyOf(values, model)),
    trace: true,
  });
  showRuns([run], values);
  viewer.show(run);
  const path = fillsGaps ? "v1/fill_gaps" : "v1/completions";
  for await (const chunk of stream(path, run.request, page.key.value, signal)) {
    run.take(chunk);
    page.status.textContent = "Writing …";
    viewer.update();
  }
  if (step === Infinity) viewer.update(); // stays at an earlier step if one was chosen
  else viewer.go(step);
  page.status.textContent = fillsGaps ? "Done: the gaps are filled." : ENDS[run.reason];
}

function asGap(part) {
  return typeof part === "number" ? { gap: part } : part;
}

async function raceAll(values, signal) {
  const lanes = controls.models.map((model) => {
    const request = { model: model.id, prompt: values.prompt, ...controls.optionsFor(values, model.dadlm.family) };
    return new Lane(new Run(model, [values.prompt], request), lookInside);
  });
  showRuns(lanes.map(({ run }) => run), values);
  page.race.replaceChildren(...lanes.map(({ card }) => card));
  page.status.textContent = "Racing …";
  const chunksOf = ({ request }) => stream("v1/completions", request, page.key.value, signal);
  await race(lanes, Boolean(values.in_turn), chunksOf);
  page.status.textContent = "Done: all models have finished.";
}

/** The same seed writes the same text again, this time with its steps. */
function lookInside(model) {
  controls.follow(controls.link(asked, null)); // the controls may say something else by now
  controls.choose("write", model.id);
  start();
}

function showRuns(now, values) {
  [runs, asked, begun, ended] = [now, values, performance.now(), null];
  history.replaceState(null, "", controls.link(asked, null));
  const isRace = values.mode === "race";
  page.race.hidden = !isRace;
  page.textCard.hidden = page.stepsCard.hidden = page.saveSvg.hidden = page.savePng.hidden = isRace;
  page.exports.hidden = true;
  viewer.show(null);
}

/** What depends on the step that is shown. */
function showAt(index) {
  const [run] = runs;
  showText(page.text, run.piecesAt(index));
  showFigures(page.figures, run, ((ended ?? performance.now()) - begun) / 1000);
}

function settle() {
  running = null;
  ended ??= performance.now();
  page.stop.disabled = true;
  page.text.ariaBusy = "false";
  page.exports.hidden = !runs.length;
  page.saveSvg.disabled = page.savePng.disabled = !runs[0]?.steps.length;
}

function report(error) {
  if (error.name === "AbortError") {
    page.status.textContent = "Stopped.";
    return;
  }
  page.status.textContent = "";
  page.problem.textContent = error.message;
  page.problem.hidden = false;
  if (error.status === 401) page.keyField.hidden = false;
}

async function copyLink() {
  history.replaceState(null, "", controls.link(asked, runs[0].steps.length ? viewer.index : null));
  try {
    await navigator.clipboard.writeText(location.href);
    page.status.textContent = "Link copied: it repeats this run.";
  } catch {
    page.status.textContent = "The address bar holds the link to this run.";
  }
}

function stepName() {
  const { block, step } = runs[0].steps[viewer.index];
  return `dadlm-block-${block}-step-${step}`;
}
