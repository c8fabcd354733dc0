import {
  brief,
  decode,
  double,
  encode,
  exact,
  formatNamed,
  LESSON_MODES,
  leastOf,
  MODES,
  modeNamed,
  NEGATIVE,
  POSITIVE,
  power,
  readWithin,
  round,
  STOCHASTIC,
  shown,
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
  shape,
  showChoice,
  slider,
  textField,
} from "./parts.js";
import { raised } from "./spelling.js";

// Values and what rounds to them ----------------------------------------------------------

const [NARROWEST, WIDEST] = [-20, 18]; // widths of the stretch, as powers of two

/** The number of values between a value and 0, negative on its other side. */
const rankOf = (value, f) => (value < 0 ? -1 : 1) * encode(Math.abs(value), f);

/** The value of a rank. */
export const atRank = (rank, f) => (rank < 0 ? -decode(-rank, f) : decode(rank, f));

/** Ranks of the first and the last finite value from `low` to `high`, of which there may be none. */
export function ranksBetween(low, high, f) {
  if (low > f.maxFinite || high < leastOf(f)) return [0, -1];
  const first = round(Math.max(low, leastOf(f)), f, POSITIVE).value;
  const last = round(Math.min(high, f.maxFinite), f, NEGATIVE).value;
  return [rankOf(first, f), rankOf(last, f)];
}

/** The value of a rank; past the largest, where it would be if the range went on. */
function reached(rank, f) {
  if (rank < 0 && !f.signed) return 0;
  if (Math.abs(rank) <= f.maxCode) return atRank(rank, f);
  return Math.sign(rank) * (2 * f.maxFinite - atRank(f.maxCode - 1, f));
}

/** How far towards a neighbour numbers still round to the value of a rank, found by rounding. */
function edge(rank, neighbour, f, mode) {
  const value = atRank(rank, f);
  const other = reached(neighbour, f);
  if (mode === STOCHASTIC) return other;
  const middle = (value + other) / 2;
  if (round((middle + other) / 2, f, mode).value === value) return other;
  return round((value + middle) / 2, f, mode).value === value ? middle : value;
}

/** What rounds to the value of a rank: all from `low` to `high`; by chance, less towards both. */
export const bin = (rank, f, mode) => ({
  value: atRank(rank, f),
  low: edge(rank, rank - 1, f, mode),
  high: edge(rank, rank + 1, f, mode),
});

// In words --------------------------------------------------------------------------------

/** The ends of the stretch; wider than asked where doubles could not tell them apart. */
export function windowOf({ middle, zoom }) {
  const half = Math.max(power(zoom - 1), Math.abs(middle) * power(-40));
  return [middle - half, middle + half];
}

/** How many values a format has in the stretch. */
export function count(state, f) {
  const [first, last] = ranksBetween(...windowOf(state), f);
  return last - first + 1;
}

const values = (n) => `${n.toLocaleString("en")} value${n === 1 ? "" : "s"}`;

/** Which ends of a bin round to its value: all that distinguishes the two ways to round ties. */
function included({ value, low, high }, f, mode) {
  const [first, second] = [low, high].map((end) => round(end, f, mode).value === value);
  if (first === second) return first ? "both included" : "both excluded";
  return `the ${first ? "first" : "second"} included`;
}

/** The bin of the value at or just below the middle. */
function around({ middle, mode }, f) {
  if (Math.abs(middle) > f.maxFinite) return `${f.name} ends at ${brief(f.maxFinite)}.`;
  if (middle < leastOf(f)) return `${f.name} starts at ${brief(leastOf(f))}.`;
  const found = bin(rankOf(round(middle, f, NEGATIVE).value, f), f, mode);
  const [low, high, value] = [found.low, found.high, found.value].map((x) => shown(exact(x)));
  if (mode === STOCHASTIC) {
    return `In ${f.name} some of what lies between ${low} and ${high} becomes ${value}.`;
  }
  const ends = included(found, f, mode);
  return `In ${f.name} what lies between ${low} and ${high} (${ends}) becomes ${value}.`;
}

const stretch = (state) =>
  windowOf(state)
    .map((end) => brief(end))
    .join(" to ");

/** The stretch, how many values there are, and what becomes of numbers in its middle. */
export function sentence(state) {
  const formats = [...new Set([state.first, state.second])];
  const counts = formats.map((f) => `${f.name} has ${values(count(state, f))}`);
  const bins = formats.map((f) => around(state, f));
  return `From ${stretch(state)} ${counts.join(", ")}. ${bins.join(" ")}`;
}

// What the reader does --------------------------------------------------------------------

/** The part of a state that the model holds. */
export const plain = ({ around: typed, zoom, first, second, mode }) => ({
  around: typed,
  zoom,
  first: first.name,
  second: second.name,
  mode: MODES[mode],
});

/** The state with some of that part changed. */
export function changed(state, record) {
  const wanted = { ...plain(state), ...record };
  const first = formatNamed(wanted.first, state.formats);
  const second = formatNamed(wanted.second, state.formats);
  const widest = formatNamed("FP32", state.formats);
  const middle = double(readWithin("The middle", wanted.around, first, widest));
  const zoom = wholeNumber("The width's exponent", wanted.zoom, NARROWEST, WIDEST);
  const mode = modeNamed(wanted.mode);
  return { ...state, around: wanted.around, middle, zoom, first, second, mode };
}

// The page --------------------------------------------------------------------------------

const MOST = 130; // values drawn one by one; more are drawn as a band
const LANE = 48; // height of the areas
const TICK = LANE + 8;

const percent = (part) => `${(100 * part).toFixed(3)}%`;

/** Where a number is in a stretch, from 0 to 1; at an end if it is outside. */
const place = (x, [low, high]) => Math.min(Math.max((x - low) / (high - low), 0), 1);

const area = (low, high, ends, more) => {
  const [left, right] = [place(low, ends), place(high, ends)];
  const where = {
    x: percent(left),
    width: percent(right - left),
    y: TICK - LANE - 4,
    height: LANE,
  };
  return shape("rect", { ...where, ...more });
};

/** One side of a tent: a line from the top over the value down to an end, as far as visible. */
function slope(value, end, ends) {
  const [low, high] = ends;
  const [from, to] = [value, end].map((x) => Math.min(Math.max(x, low), high));
  const y = (x) => TICK - 4 - LANE * (1 - (x - value) / (end - value));
  const [x1, x2] = [from, to].map((x) => percent(place(x, ends)));
  return shape("line", { x1, x2, y1: y(from), y2: y(to), "stroke-opacity": 0.6 });
}

/** What rounds to a value, and its tick. */
function binShapes(rank, f, mode, ends) {
  const { value, low, high } = bin(rank, f, mode);
  const tent = [low, high].filter((end) => end !== value).map((end) => slope(value, end, ends));
  const parts =
    mode === STOCHASTIC
      ? tent
      : [area(low, high, ends, { "fill-opacity": rank % 2 ? 0.38 : 0.16 })];
  if (value < ends[0] || value > ends[1]) return parts;
  const x = percent(place(value, ends));
  return [...parts, shape("line", { x1: x, x2: x, y1: 0, y2: TICK, "stroke-width": 1.8 })];
}

/** A format's name and how many values it has, over its areas and ticks. */
function rowShapes(state, f) {
  const ends = windowOf(state);
  const [first, last] = ranksBetween(...ends, f);
  const dense = last - first + 1 > MOST;
  const shapes = [];
  if (dense) shapes.push(area(atRank(first, f), atRank(last, f), ends, { "fill-opacity": 0.35 }));
  const lowest = f.signed ? -f.maxCode : 0; // areas of values beside the stretch may reach into it
  for (
    let rank = Math.max(first - 1, lowest);
    !dense && rank <= Math.min(last + 1, f.maxCode);
    rank++
  ) {
    shapes.push(...binShapes(rank, f, state.mode, ends));
  }
  const words = `${f.name}: ${values(count(state, f))}${dense ? ", too dense to draw: zoom in" : ""}`;
  const square = element("i", { class: "mplab-square", style: `background:${f.colour}` });
  const colour = { style: `color:${f.colour}`, fill: "currentColor", stroke: "currentColor" };
  const base = shape("line", { x1: 0, x2: "100%", y1: TICK - 4, y2: TICK - 4, stroke: "#707075" });
  const drawn = shape("g", { ...colour, "stroke-width": 1 }, ...shapes);
  const picture = shape("svg", { height: TICK }, base, drawn);
  return element("div", { class: "mplab-row" }, element("b", {}, square, words), picture);
}

/** Numbers under the line, with the digits that tell them apart, and its width. */
function axis(state) {
  const [low, high] = windowOf(state);
  const width = high - low;
  const digits = Math.ceil(Math.log10(Math.max(-low, high) / width)) + 2;
  const parts = digits > 10 ? [0, 1] : [0, 0.25, 0.5, 0.75, 1];
  const ticks = parts.flatMap((part) => {
    const x = percent(part);
    const anchor = part === 0 ? "start" : part === 1 ? "end" : "middle";
    const place = { x, y: 20, "text-anchor": anchor, class: part % 0.5 ? "mplab-roomy" : "" };
    const words = brief(low + part * width, Math.max(digits, 6));
    return [
      shape("line", { x1: x, x2: x, y1: 0, y2: 5, stroke: "#707075" }),
      shape("text", place, words),
    ];
  });
  const exponent = Math.round(Math.log2(width));
  const wide = power(exponent) === width ? `2${raised(exponent)}` : brief(width);
  const name = element("div", { class: "mplab-axis" }, `number; the stretch is ${wide} wide`);
  return element("div", {}, shape("svg", { height: 24 }, ...ticks), name);
}

/** The parts of the explorer, and the function that shows a state. */
function build(act) {
  const change = (name) => (value) => act((s) => changed(s, { [name]: value }));
  const typed = textField(change("around"));
  const zoom = slider(NARROWEST, WIDEST, change("zoom"));
  const [first, second, mode] = ["first", "second", "mode"].map((name) => chooser(change(name)));
  const picture = element("div", { class: "mplab-figure", role: "img" });

  function show(state, note) {
    const names = state.formats.map(({ name }) => name);
    if (!note) typed.value = state.around;
    zoom.value = state.zoom;
    zoom.setAttribute("aria-valuetext", `2${raised(state.zoom)}`);
    showChoice(first, names, state.first.name);
    showChoice(second, names, state.second.name);
    showChoice(mode, LESSON_MODES, MODES[state.mode], modeWords);
    const rows = [state.first, state.second].map((f) => rowShapes(state, f));
    picture.replaceChildren(...rows, axis(state));
    picture.setAttribute("aria-label", `Values on a line from ${stretch(state)}.`);
  }

  const parts = [
    line(labelled("around", typed), labelled("above", first), labelled("below", second)),
    line(labelled("rounding", mode)),
    element("div", { class: "mplab-sliders-box" }, labelled("width 2^", zoom)),
    picture,
  ];
  return { parts, show };
}

/** The first state, with the model's formats; the model's middle is read later. */
function begin(model, formats) {
  const [first, second] = ["first", "second"].map((name) => formatNamed(model.get(name), formats));
  return { formats, around: "1", middle: 1, zoom: 1, first, second, mode: 0 };
}

/** anywidget's entry: show an explorer in an element, and follow the reader and the model. */
function render(place) {
  const question = "How far apart are the numbers, and what rounds to each?";
  const functions = { begin, build, sentence, plain, changed, ...links("line", plain, changed) };
  return live(place, { question, ...functions });
}

export default { render };
