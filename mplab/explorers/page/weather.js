import { EVEN, formatNamed, next, round, STOCHASTIC, stream, wholeNumber } from "./numbers.js";
import {
  chooser,
  element,
  labelled,
  line,
  links,
  live,
  shape,
  showChoice,
  slider,
} from "./parts.js";

// Lorenz's equations, as mplab.arithmetic.integrate solves them with "rk4" --------------------

const STEPS = 20000;
const START = [1, 2, 20];

const rates = ([x, y, z]) => [10 * (y - x), x * (28 - z) - y, x * y - (8 / 3) * z];

/** The increment of one step of the method of fourth order, in FP64. */
function increment(state, dt) {
  const from = (k, h) => rates(state.map((v, i) => v + h * k[i]));
  const k1 = rates(state);
  const k2 = from(k1, dt / 2);
  const k3 = from(k2, dt / 2);
  const k4 = from(k3, dt);
  return k1.map((k, i) => (dt / 6) * (k + 2 * k2[i] + 2 * k3[i] + k4[i]));
}

/**
 * The states of a run, up to one that must repeat itself, and since which step it does: a rate of 0,
 * or, rounded to nearest in few bits, a state that was there before. No run is computed twice.
 */
export function run(f, dt, mode, steps = STEPS) {
  const kind = [f.name, dt, mode, steps].join();
  if (!runs.has(kind)) runs.set(kind, computed(f, dt, mode, steps));
  return runs.get(kind);
}
const runs = new Map();

function computed(f, dt, mode, steps) {
  let state = START.map((v) => round(v, f).value);
  const states = [state];
  const seen = new Map([[String(state), 0]]);
  let since;
  while (states.length <= steps && since === undefined) {
    const random = mode === STOCHASTIC ? stream("0", states.length - 1) : () => 0;
    const change = increment(state, dt).map(Math.fround);
    // The sum is a double: none of the runs that are offered needs more bits of it.
    state = state.map((v, i) => round(v + change[i], f, mode, false, random(i)).value);
    if (!change.some(Boolean)) since = states.length - 1;
    else if (mode === EVEN && f.bits <= 16) {
      since = seen.get(String(state));
      seen.set(String(state), states.length);
    }
    states.push(state);
  }
  const cycle = since === undefined ? 0 : states.length - 1 - since;
  return { f, dt, states, since, cycle };
}

// In words --------------------------------------------------------------------------------

const inWords = (n) => n.toLocaleString("en");

/** What became of a run, in a few words. */
export function verdict({ cycle }) {
  if (cycle === 1) return "stands still";
  return cycle ? `repeats ${inWords(cycle)} steps` : "goes on";
}

/** The longest change in the last state of a run, as a share of the gap on its side. */
export function share({ f, dt, states }) {
  const state = states.at(-1);
  const shares = increment(state, dt).map((change, i) =>
    Math.abs(Math.fround(change) / (next(state[i], f, Math.sign(change) || 1) - state[i])),
  );
  return Math.max(...shares);
}

/** What became of it, with the step. */
const fate = (run) =>
  verdict(run) + (run.cycle ? ` from step ${inWords(run.since)} on` : ` to step ${inWords(STEPS)}`);

export function sentence({ f, power, runs: [, nearest, stochastic] }) {
  const start = `${f.name}, steps of 1/${inWords(2 ** power)}: rounded to nearest, the weather`;
  const part = Math.floor(1000 * share(nearest)) / 1000;
  const rule = "of the gap to the next number: less than half a gap is rounded back.";
  const why = nearest.cycle === 1 ? `Its longest change is ${part} ${rule} ` : "";
  return `${start} ${fate(nearest)}. ${why}With stochastic rounding it ${fate(stochastic)}.`;
}

// What the reader does --------------------------------------------------------------------

export const plain = ({ f, power }) => ({ format: f.name, power });

/** The state with its format or its step changed, and what then becomes of the weather. */
export function changed(state, record) {
  const wanted = { ...plain(state), ...record };
  const f = formatNamed(wanted.format, state.formats);
  const power = wholeNumber("The step", wanted.power, 4, 12);
  const dt = 2 ** -power;
  const wide = state.formats[0];
  const runs = [run(wide, dt, EVEN), run(f, dt, EVEN), run(f, dt, STOCHASTIC)];
  return { ...state, f, power, runs };
}

// The page --------------------------------------------------------------------------------

const PIECE = 250; // steps that appear at once
const SECONDS = 5; // until all have

const spot = ([x, , z]) => `${x.toFixed(2)} ${(-z).toFixed(2)}`;

const drawings = new WeakMap();

/** The picture of a run, drawn once. */
function pictureOf(run) {
  if (!drawings.has(run)) drawings.set(run, picture(run));
  return drawings.get(run).cloneNode(true);
}

/** A run as a line of z over x that appears piece by piece, and a ring where it stands still. */
function picture({ f, dt, states, since, cycle }) {
  const pieces = [];
  const width = Math.min(0.35 + 8 / (states.length * dt), 1.4); // thin where many lines lie
  for (let n = 0; n + 1 < states.length; n += PIECE) {
    const points = states.slice(n, n + PIECE + 1).map(spot);
    const style = `stroke-width:${width}px;animation-delay:${(n / STEPS) * SECONDS}s`;
    const look = { style, "vector-effect": "non-scaling-stroke" };
    pieces.push(shape("path", { d: `M${points.join("L")}`, ...look }));
  }
  if (cycle === 1) {
    const [x, , z] = states[since];
    pieces.push(shape("circle", { cx: x, cy: -z, r: 1.5, fill: f.colour }));
    pieces.push(shape("circle", { cx: x, cy: -z, r: 4 }));
  }
  const more = { fill: "none", stroke: f.colour, "aria-hidden": true };
  return shape("svg", { viewBox: "-24 -52 48 54", ...more }, ...pieces);
}

function build(act) {
  const change = (name) => (value) => act((s) => changed(s, { [name]: value }));
  const format = chooser(change("format"));
  const power = slider(4, 12, change("power"));
  const step = element("span");
  const panels = element("div", { class: "mplab-weather" });
  const seen = ([{ isIntersecting }]) => panels.classList.toggle("mplab-seen", isIntersecting);
  new IntersectionObserver(seen).observe(panels);

  function show(state) {
    const names = state.formats.slice(1).map(({ name }) => name);
    showChoice(format, names, state.f.name);
    power.value = state.power;
    step.textContent = `1/${inWords(2 ** state.power)}`;
    power.setAttribute("aria-valuetext", step.textContent);
    const ways = ["to nearest", "to nearest", "stochastic"];
    const drawn = state.runs.map((each, i) => {
      const words = element("b", {}, `${each.f.name} ${ways[i]}`);
      return element("div", {}, pictureOf(each), words, ` ${verdict(each)}`);
    });
    panels.replaceChildren(...drawn);
  }

  const label = element("label", {}, "step ", power, step);
  const box = element("div", { class: "mplab-sliders-box" }, label);
  return { parts: [line(labelled("format", format)), box, panels], show };
}

/** anywidget's entry: show an explorer in an element, and follow the reader and the model. */
function render(place) {
  const question = "Which step makes the weather stand still, and what frees it?";
  const begin = (_, formats) => ({ formats, f: formats[0], power: 4 });
  const functions = { begin, build, sentence, plain, changed };
  return live(place, { question, ...functions, ...links("weather", plain, changed) });
}

export default { render };
