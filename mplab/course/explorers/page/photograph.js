import {
  EVENTS,
  formatNamed,
  MODES,
  modeNamed,
  round,
  STOCHASTIC,
  stream,
  wholeNumber,
} from "./numbers.js";
import {
  chooser,
  element,
  labelled,
  line,
  links,
  live,
  modeWords,
  showChoice,
  slider,
} from "./parts.js";
import { raised } from "./spelling.js";

// A lake at dusk, whose sun is 300,000 times as bright as its shore ---------------------------

const [WIDTH, HEIGHT] = [320, 180];
const HORIZON = 0.62;
const HILLS = [
  { reach: 0.07, rate: 4, seed: 1, light: [0.12, 0.065, 0.085] },
  { reach: 0.05, rate: 7, seed: 6, light: [0.022, 0.017, 0.03] },
  { reach: 0.03, rate: 12, seed: 3, light: [0.0035, 0.0032, 0.005] },
];

const waves = (x, seed) =>
  [1, 2.3, 5.1, 11, 23].reduce((sum, k) => sum + Math.sin(k * (x + seed)) / k, 0);

/** Red, green and blue of the sky and the hills, at a place from 0 to 1 across and down. */
function air(x, y) {
  const crest = ({ reach, rate, seed }) => HORIZON - reach * (1.3 + waves(rate * x, seed));
  const hill = HILLS.findLast((each) => y > crest(each));
  if (hill) return hill.light;
  const far = Math.hypot(1.78 * (x - 0.66), y - 0.42);
  const sun = 330 / (1 + Math.exp(900 * (far - 0.04)));
  const glow = Math.exp(-5 * far) + 7 * Math.exp(-17 * far);
  const cloud = Math.max(0, waves(4 * x + waves(9 * y, 2), 0) * waves(30 * y, waves(3 * x, 5)));
  const dusk = Math.exp(-6 * (HORIZON - y)) * (1 + cloud);
  return [sun + glow + 0.4 * dusk, 0.6 * sun + 0.4 * glow + 0.15 * dusk, 0.06 + 0.2 * (sun + dusk)];
}

/** The same of the lake, which mirrors, and of its shore. */
function light(x, y) {
  const shore = 0.92 - 0.03 * waves(5 * x, 4);
  if (y > shore) return [1.2, 1.1, 1].map((v) => v * 0.001 * (1 + waves(40 * x, 90 * y) ** 2));
  if (y < HORIZON) return air(x, y);
  const ripple = 0.02 * waves(3 / (y - HORIZON + 0.03), 8 * x);
  return air(x + ripple / 4, Math.max(0, 2 * HORIZON - y + ripple - 0.02)).map((v) => v / 2);
}

/** The picture, whose numbers FP16 has: red, green and blue of each pixel. */
export function scene(fp16) {
  const pixels = Array.from({ length: WIDTH * HEIGHT }, (_, i) =>
    light((i % WIDTH) / WIDTH, Math.floor(i / WIDTH) / HEIGHT),
  );
  return Float64Array.from(pixels.flat(), (v) => round(v / 32, fp16).value);
}

const known = new WeakMap();

/** The different numbers of a picture, few beside its places, and at each place which of them. */
function numbersOf(picture) {
  if (!known.has(picture)) {
    const each = [...new Set(picture)];
    const order = new Map(each.map((x, k) => [x, k]));
    const at = Uint32Array.from(picture, (x) => order.get(x));
    known.set(picture, { each, at, all: Uint32Array.from(picture.keys()) });
  }
  return known.get(picture);
}

/** The picture times 2^power as a format stores it, divided again, and what it lost. */
export function stored(picture, f, power, mode) {
  const random = stream("0");
  // Places of one number have one result, unless each draws its own bits.
  const own = mode === STOCHASTIC;
  const numbers = numbersOf(picture);
  const [given, at] = own ? [picture, numbers.all] : [numbers.each, numbers.at];
  const each = new Float64Array(given.length);
  const past = new Uint8Array(given.length);
  for (let i = 0; i < given.length; i += 1) {
    const { value, events } = round(given[i] * 2 ** power, f, mode, false, random(i));
    each[i] = value / 2 ** power;
    past[i] = Boolean(events & EVENTS.OVERFLOW);
  }
  const values = new Float64Array(picture.length);
  let [zero, over] = [0, 0];
  for (let i = 0; i < values.length; i += 1) {
    values[i] = each[at[i]];
    zero += values[i] === 0;
    over += past[at[i]];
  }
  return { values, zero, over, left: new Set(each).size, shown: { each, at } };
}

export function sentence({ f, power, values, ...lost }) {
  const counts = [values.length, lost.zero, lost.over, lost.left];
  const [all, dark, bright, left] = counts.map((n) => n.toLocaleString("en"));
  const end = f.infinityCode ? "infinite" : f.nanCode ? "NaN" : "the largest number";
  const said = `${dark} of ${all} numbers became 0 and ${bright} became ${end}`;
  return `${f.name}, light times 2${raised(power)}: ${said}. ${left} different values are left.`;
}

export const plain = ({ f, power, mode }) => ({ format: f.name, power, mode: MODES[mode] });

/** The state with its format, exposure or rounding changed, and the picture that it stores. */
export function changed(state, record) {
  const wanted = { ...plain(state), ...record };
  const f = formatNamed(wanted.format, state.formats);
  const power = wholeNumber("The exposure", wanted.power, -14, 14);
  const mode = modeNamed(wanted.mode);
  return { ...state, f, power, mode, ...stored(state.picture, f, power, mode) };
}

// The page --------------------------------------------------------------------------------

const MAGENTA = [255, 0, 170];

/** A picture on a screen, shadows and sun at once; what is no number is magenta. */
function canvas({ each, at }) {
  const made = element("canvas", { width: WIDTH, height: HEIGHT, "aria-hidden": true });
  const image = new ImageData(WIDTH, HEIGHT);
  const tones = Array.from(each, (v) => 255 * (v / (v + 0.013)) ** 0.48);
  for (let i = 0; i < at.length; i += 3) {
    const rgb = [tones[at[i]], tones[at[i + 1]], tones[at[i + 2]]];
    const seen = Number.isFinite(rgb[0] + rgb[1] + rgb[2]) ? rgb : MAGENTA;
    image.data.set([...seen, 255], (4 * i) / 3);
  }
  made.getContext("2d").putImageData(image, 0, 0);
  return made;
}

function build(act, now) {
  const change = (name) => (value) => act((s) => changed(s, { [name]: value }));
  const [format, mode] = ["format", "mode"].map((name) => chooser(change(name)));
  const power = slider(-14, 14, change("power"));
  const [factor, part] = [element("span"), element("p", {}, "original: the left 50%")];
  const split = slider(0, 100, (at) => {
    photo.style.setProperty("--split", `${at}%`);
    part.textContent = `original: the left ${at}%`;
  });
  split.ariaLabel = "original up to here, in percent";
  const canvases = [canvas(numbersOf(now().picture)), element("canvas")];
  const photo = element("div", { class: "mplab-photo" }, ...canvases, split, part);

  function show(state) {
    const names = state.formats.map(({ name }) => name);
    showChoice(format, names, state.f.name);
    showChoice(mode, ["TIES_TO_EVEN", "STOCHASTIC"], MODES[state.mode], modeWords);
    power.value = state.power;
    factor.textContent = `2${raised(state.power)}`;
    power.setAttribute("aria-valuetext", `2 to the ${state.power}`);
    photo.children[1].replaceWith(canvas(state.shown));
  }

  const exposure = element("label", {}, "exposure ", power, factor);
  const box = element("div", { class: "mplab-sliders-box" }, exposure);
  return {
    parts: [line(labelled("format", format), labelled("rounding", mode)), box, photo],
    show,
  };
}

/** anywidget's entry: show an explorer in an element, and follow the reader and the model. */
function render(place) {
  const question = "Which exposure saves both the sun and the shore?";
  const first = { power: 0, mode: 0 };
  const begin = (_, formats) => ({ formats, f: formats[0], ...first, picture: scene(formats[0]) });
  const functions = { begin, build, sentence, plain, changed };
  return live(place, { question, ...functions, ...links("photograph", plain, changed) });
}

export default { render };
