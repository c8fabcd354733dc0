import {
  EVEN,
  encode,
  formatNamed,
  next,
  round,
  STOCHASTIC,
  stream,
  wholeNumber,
} from "./numbers.js";
import { chooser, element, line, links, live, shape, showChoice, slider } from "./parts.js";

// Lorenz's equations, as mplab.arithmetic.integrate solves them with "rk4" --------------------

const STEPS = 20000;
const START = [1, 2, 20];

const rates = (x, y, z) => [10 * (y - x), x * (28 - z) - y, x * y - (8 / 3) * z];

/** The increment of one step of the method of fourth order from the state at `i`, in FP32. */
function increment(states, i, dt) {
  const [x, y, z] = [states[i], states[i + 1], states[i + 2]];
  const from = (h, k) => rates(x + h * k[0], y + h * k[1], z + h * k[2]);
  const k1 = rates(x, y, z);
  const k2 = from(dt / 2, k1);
  const k3 = from(dt / 2, k2);
  const k4 = from(dt, k3);
  const mean = (j) => Math.fround((dt / 6) * (k1[j] + 2 * k2[j] + 2 * k3[j] + k4[j]));
  return [mean(0), mean(1), mean(2)];
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
const draws = []; // the random bits of each step, the same in all runs

function computed(f, dt, mode, steps) {
  const states = new Float64Array(3 * steps + 3);
  states.set(START.map((v) => round(v, f).value));
  const few = mode === EVEN && f.bits <= 16;
  const seen = new Map([[few && codes(states, 0, f), 0]]);
  let random = () => 0;
  let since;
  let n = 0;
  for (; n < steps && since === undefined; n++) {
    const change = increment(states, 3 * n, dt);
    if (mode === STOCHASTIC) random = draws[n] ??= stream("0", n);
    for (let i = 0; i < 3; i++) {
      // The sum is a double: none of the runs that are offered needs more bits of it.
      const sum = states[3 * n + i] + change[i];
      states[3 * n + 3 + i] = round(sum, f, mode, false, random(i)).value;
    }
    if (!change.some(Boolean)) since = n;
    else if (few) {
      const key = codes(states, 3 * n + 3, f);
      since = seen.get(key);
      seen.set(key, n + 1);
    }
  }
  const cycle = since === undefined ? 0 : n - since;
  return { f, dt, states: states.slice(0, 3 * n + 3), since, cycle };
}

/** The three codes of 16 bits of a state as one number. */
const codes = (states, i, f) =>
  (encode(states[i], f) * 2 ** 16 + encode(states[i + 1], f)) * 2 ** 16 + encode(states[i + 2], f);

// In words --------------------------------------------------------------------------------

const inWords = (n) => n.toLocaleString("en");

/** What became of a run, in a few words. */
export function verdict({ cycle }) {
  if (cycle === 1) return "stands still";
  return cycle ? `repeats ${inWords(cycle)} steps` : "goes on";
}

/** The longest change in the last state of a run, as a share of the gap on its side. */
export function share({ f, dt, states }) {
  const last = states.length - 3;
  const shares = increment(states, last, dt).map((change, i) => {
    const value = states[last + i];
    return Math.abs(change / (next(value, f, Math.sign(change) || 1) - value));
  });
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

/** What to give to `run` for the three pictures of a step. */
const three = ({ formats: [wide], f }, power) =>
  [wide, f, f].map((each, i) => [each, 2 ** -power, i === 2 ? STOCHASTIC : EVEN]);

/** The state with its format or its step changed, and what then becomes of the weather. */
export function changed(state, record) {
  const wanted = { ...plain(state), ...record };
  const f = formatNamed(wanted.format, state.formats);
  const power = wholeNumber("The step", wanted.power, 4, 12);
  return { ...state, f, power, runs: three({ ...state, f }, power).map((each) => run(...each)) };
}

// The page --------------------------------------------------------------------------------

const PIECE = 250; // steps that appear at once
const PAUSE = 62; // ms until the next ones: 5 seconds for all

/** Where a state is in a picture, in hundredths, which are quick to write. */
const spot = (states, n) =>
  `${Math.round(100 * states[3 * n])} ${Math.round(-100 * states[3 * n + 2])}`;

const thin = { "vector-effect": "non-scaling-stroke" };

/** The lines of z over x of a run, piece by piece. */
function* pieces({ dt, states }) {
  const steps = states.length / 3 - 1;
  const width = Math.min(0.35 + 8 / (steps * dt), 1.4); // thin where many lines lie
  for (let n = 0; n < steps; n += PIECE) {
    const points = [];
    for (let k = n; k <= Math.min(n + PIECE, steps); k++) points.push(spot(states, k));
    yield shape("path", { d: `M${points.join("L")}`, "stroke-width": width, ...thin });
  }
}

/** The picture of a run before its lines: only a ring where it stands still. */
function frame({ f, states, since, cycle }) {
  const transform = `translate(${spot(states, since ?? 0)})`;
  const ring = (r, fill) => shape("circle", { r, fill, transform, ...thin });
  const rings = cycle === 1 ? [ring(150, f.colour), ring(400, "none")] : [];
  const look = { fill: "none", stroke: f.colour, "aria-hidden": true };
  return shape("svg", { viewBox: "-2400 -5200 4800 5400", ...look }, ...rings);
}

const whenIdle = globalThis.requestIdleCallback ?? ((act) => setTimeout(act, 50));

function build(act) {
  const change = (name) => (value) => act((s) => changed(s, { [name]: value }));
  const format = chooser(change("format"));
  const power = slider(4, 12, change("power"));
  const step = element("span");
  const panels = element("div", { class: "mplab-weather" });
  let shown, growing, seen;
  const watch = ([{ isIntersecting }]) => {
    seen = isIntersecting;
    if (seen) draw();
  };
  new IntersectionObserver(watch).observe(panels);

  /** Take runs before a key asks for them, one each time that the page rests. */
  const prepare = (state, [asked, ...more]) =>
    asked && whenIdle(() => seen && state === shown && run(...asked) && prepare(state, more));

  /** Add a piece to each picture and, after a pause, the next ones. */
  function grow(pictures) {
    const unfinished = pictures.filter(([picture, rest]) => {
      const { value, done } = rest.next();
      if (!done) picture.append(value);
      return !done;
    });
    if (!unfinished.length) return;
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) grow(unfinished);
    else growing = setTimeout(grow, PAUSE, unfinished);
  }

  function draw() {
    clearTimeout(growing);
    const pictures = shown.runs.map((each) => [frame(each), pieces(each)]);
    const drawn = shown.runs.map((each, i) => {
      const words = element("b", {}, `${each.f.name} ${i === 2 ? "stochastic" : "to nearest"}`);
      return element("div", {}, pictures[i][0], words, ` ${verdict(each)}`);
    });
    panels.replaceChildren(...drawn);
    grow(pictures);
    const beside = [shown.power + 1, shown.power - 1].filter((k) => k >= 4 && k <= 12);
    prepare(shown, seen ? beside.flatMap((k) => three(shown, k)) : []);
  }

  function show(state) {
    shown = state;
    const names = state.formats.slice(1).map(({ name }) => name);
    showChoice(format, names, state.f.name);
    power.value = state.power;
    step.textContent = `1/${inWords(2 ** state.power)}`;
    power.setAttribute("aria-valuetext", step.textContent);
    draw();
  }

  const name = (...parts) => element("label", {}, ...parts);
  const box = element("div", { class: "mplab-sliders-box" }, name("step ", power, step));
  return { parts: [line(name("format ", format)), box, panels], show };
}

/** anywidget's entry: show an explorer in an element, and follow the reader and the model. */
function render(place) {
  const question = "Which step makes the weather stand still, and what frees it?";
  const begin = (_, formats) => ({ formats, f: formats[0], power: 4 });
  const functions = { begin, build, sentence, plain, changed };
  return live(place, { question, ...functions, ...links("weather", plain, changed) });
}

export default { render };
