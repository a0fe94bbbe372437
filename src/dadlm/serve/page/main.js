// The playground: reads the controls, asks the server, and shows the answer.

import { Controls } from "./controls.js";
import { byId } from "./dom.js";
import { partsOf } from "./gaps.js";
import { themeSwitch } from "./palette.js";
import { Lane, race } from "./race.js";
import { Run } from "./run.js";
import { saveJson, savePng, saveSvg } from "./save.js";
import { stream } from "./server.js";
import { showFigures, showText } from "./text.js";
import { Viewer } from "./viewer.js";
import { ENDS, INVITATIONS } from "./words.js";

const page = byId();
const controls = new Controls(page);
const viewer = new Viewer(page, showAt);
let runs = []; // on the page: one, or one for each lane
let asked = null; // the values of the controls that they were made with
let running = null; // aborts what runs
let unread = null; // a link that was opened before the models were loaded
let linked = null; // the step that a link points at, for the next run

page.controls.addEventListener("submit", (event) => {
  event.preventDefault();
  // The browser's own check would let an invalid value in a hidden control block the button.
  const shown = [...page.controls.elements].filter((field) => !field.closest("[hidden]"));
  const faulty = shown.find((field) => !field.checkValidity());
  if (faulty?.closest("details")) page.settings.open = true;
  if (faulty) faulty.reportValidity();
  else start();
});
page.controls.addEventListener("input", ({ target }) => {
  if (target !== page.key) unread = linked = null; // typing something else discards the link
  if (target.name === "task") changeTask();
});
page.stop.addEventListener("click", () => running?.abort());
page.copyLink.addEventListener("click", copyLink);
page.saveSvg.addEventListener("click", () => saveSvg(viewer.picture(), stepName()));
page.savePng.addEventListener("click", () => savePng(viewer.picture(), stepName()).catch(report));
page.saveJson.addEventListener("click", () => saveJson(runs.length > 1 ? runs : runs[0], "dadlm-run"));
themeSwitch(page.theme, () => viewer.redraw());
page.settings.open = matchMedia("(min-width: 60rem)").matches;
showStage();
addEventListener("hashchange", openPage);
openPage();

/** The page opens by running an example. A link only fills in its settings: a stranger may have made it. */
async function openPage() {
  const { hash } = location; // now: a run that is started while the models load changes it
  try {
    await controls.load(page.key.value);
  } catch (error) {
    unread = hash;
    return report(error);
  }
  unread = null; // this link is the newer one
  if (hash) fillIn(hash);
  else if (!running && !runs.length) {
    const error = await start(false);
    if (error?.param === "prompt") withoutExample();
    else if (runs[0]?.isOver) viewer.go(runs[0].openingStep);
  }
}

/** For a model that lacks the words of the example. */
function withoutExample() {
  [runs, asked] = [[], null];
  viewer.show(null);
  page.prompt.value = "";
  page.problem.hidden = page.exports.hidden = true;
  page.status.textContent = "Type a prompt to begin.";
  history.replaceState(null, "", location.pathname);
  showStage();
}

function fillIn(hash) {
  const link = controls.follow(hash);
  if (!link) return;
  drop();
  linked = link.step;
  showStage();
  page.status.textContent = `The link’s settings are filled in. ${page.run.textContent} runs them.`;
}

/** Start the run that the controls describe; returns the error that ended it, if one did. */
async function start(byUser = true) {
  running?.abort();
  const mine = (running = new AbortController());
  page.problem.hidden = true;
  page.stop.disabled = false;
  page.status.textContent = "Waiting for the server …";
  page.text.ariaBusy = "true";
  try {
    await controls.load(page.key.value);
    mine.signal.throwIfAborted();
    if (unread !== null && new URLSearchParams(unread.slice(1)).has("seed")) {
      fillIn(unread);
      unread = null;
      return;
    }
    const { values } = controls;
    const step = linked ?? Infinity;
    linked = null;
    if (values.task === "race") await raceAll(values, mine.signal, byUser);
    else await writeOne(values, mine.signal, byUser, step);
  } catch (error) {
    if (mine === running) report(error);
    return error;
  } finally {
    if (mine === running) settle();
  }
}

async function writeOne(values, signal, byUser, step) {
  const [lane] = controls.lanes(values);
  if (!lane) throw new Error("This server does not have the model of this link. Choose another.");
  const fillsGaps = values.task === "infill";
  const parts = fillsGaps ? partsOf(values.prompt, lane.model.dadlm.context) : [values.prompt];
  const run = new Run(lane, parts, {
    model: lane.model.id,
    ...(fillsGaps ? { parts: parts.map(asGap) } : { prompt: values.prompt }),
    ...controls.optionsFor(values, lane),
  });
  showRuns([run], values, byUser);
  viewer.show(run);
  const path = fillsGaps ? "v1/fill_gaps" : "v1/completions";
  const ask = (more) => stream(path, { ...run.request, ...more }, page.key.value, signal);
  await run.time(ask({}), () => {
    page.status.textContent = "Writing …";
    viewer.update();
  });
  if (values.trace) {
    page.status.textContent = "Written. Now the same once more, step by step …";
    await run.trace(ask({ trace: true }), () => viewer.update());
  }
  if (step === Infinity) viewer.update(); // which stays at an earlier step if one was chosen
  else viewer.go(step);
  page.status.textContent = ENDS[run.reason];
}

function asGap(part) {
  return typeof part === "number" ? { gap: part } : part;
}

async function raceAll(values, signal, byUser) {
  const chosen = controls.lanes(values);
  if (!chosen.length) throw new Error("Choose the models of the race.");
  const lanes = chosen.map((lane) => {
    const request = { model: lane.model.id, prompt: values.prompt, ...controls.optionsFor(values, lane) };
    return new Lane(new Run(lane, [values.prompt], request), lookInside);
  });
  showRuns(lanes.map(({ run }) => run), values, byUser);
  page.race.replaceChildren(...lanes.map(({ card }) => card));
  page.status.textContent = "Racing …";
  const chunksOf = ({ request }) => stream("v1/completions", request, page.key.value, signal);
  await race(lanes, Boolean(values.in_turn), chunksOf);
  const failed = lanes.filter(({ problem }) => problem).length;
  page.status.textContent = failed
    ? `${failed} of ${lanes.length} could not finish.`
    : "Done: all models have finished.";
}

/** The same seed writes the same text again, this time with its steps. */
function lookInside(lane) {
  controls.follow(controls.link(asked, null)); // the controls may say something else by now
  controls.choose(lane);
  start();
}

function showRuns(now, values, byUser) {
  [runs, asked] = [now, values];
  history.replaceState(null, "", controls.link(asked, null));
  page.exports.hidden = true;
  viewer.show(null);
  showStage();
  const { top } = page.stage.getBoundingClientRect();
  if (!byUser || (top >= 0 && top < innerHeight / 3)) return;
  page.stage.classList.add("in-view"); // tall enough to be scrolled to before anything is in it
  page.stage.scrollIntoView();
}

/** A result is shown with its own task only. */
function showStage() {
  const { task } = controls.values;
  const isRace = task === "race";
  page.stage.hidden = asked?.task !== task;
  page.invitation.hidden = !page.stage.hidden;
  page.invitation.textContent = INVITATIONS[task];
  page.race.hidden = !isRace;
  page.textCard.hidden = page.saveSvg.hidden = page.savePng.hidden = isRace;
  page.stepsCard.hidden = isRace || !asked?.trace;
}

function changeTask() {
  drop();
  page.status.textContent = "";
  page.problem.hidden = true;
  showStage();
}

/** What depends on the step that is shown. */
function showAt(index) {
  const [run] = runs;
  showText(page.text, run.piecesAt(index));
  showFigures(page.figures, run);
}

/** Silently end what runs. */
function drop() {
  running?.abort();
  settle();
}

function settle() {
  running = null;
  page.stop.disabled = true;
  page.text.ariaBusy = "false";
  page.exports.hidden = !runs.length;
  page.saveSvg.disabled = page.savePng.disabled = !runs[0]?.hasGraph(viewer.index);
  viewer.redraw();
}

function report(error) {
  page.status.textContent = error.name === "AbortError" ? "Stopped." : "";
  if (error.name === "AbortError") return;
  const { message, param, place } = error;
  // The page has names of its own for what the API calls max_tokens or parts.
  const isNamed = param && message.toLowerCase().startsWith(param.toLowerCase());
  page.problem.textContent = isNamed ? controls.nameOf(param) + message.slice(param.length) : message;
  page.problem.hidden = false;
  // "center", because "nearest" would not end a smooth scroll to the result that is still under way.
  page.problem.scrollIntoView({ block: "center" });
  if (error.status === 401) page.keyField.hidden = false;
  if (!place) return;
  page.prompt.focus();
  page.prompt.setSelectionRange(...place);
}

async function copyLink() {
  history.replaceState(null, "", controls.link(asked, runs[0].steps.length ? viewer.index : null));
  try {
    await navigator.clipboard.writeText(location.href);
    page.status.textContent = "Link copied: it holds the settings of this run.";
  } catch {
    page.status.textContent = "The address bar holds the link to this run.";
  }
}

function stepName() {
  const { block, step } = runs[0].steps[viewer.index];
  return `dadlm-block-${block}-step-${step}`;
}
