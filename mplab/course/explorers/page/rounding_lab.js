import {
  brief,
  double,
  encode,
  exact,
  formatNamed,
  inHex,
  LESSON_MODES,
  MODES,
  modeNamed,
  NEGATIVE,
  POSITIVE,
  readWithin,
  round,
  STOCHASTIC,
  shown,
  stream,
  ulp,
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

// The number and its roundings ------------------------------------------------------------

const DRAWS = 1000; // how many times stochastic rounding is tried

/** |x| in units of the format's last place there: whole ones, and the rest as a fraction. */
function units({ n, d }, f) {
  const unit = exact(ulp(double({ n, d }, true), f));
  const [over, under] = [n * unit.d, d * unit.n];
  return { whole: over / under, n: over % under, d: under };
}

/** The number to be rounded: the one that was typed, moved away from 0 by eighths of an ulp. */
export function numberOf({ base, eighths, f }) {
  const step = exact(ulp(double(base, true), f));
  const n = base.n * step.d * 8n + BigInt(eighths) * step.n * base.d;
  return { negative: base.negative, n, d: base.d * step.d * 8n };
}

/** Everything that follows from a state about its number. */
export function found(state) {
  const { f } = state;
  const x = numberOf(state);
  const nearby = double(x, true);
  const results = LESSON_MODES.map((_, mode) => round(nearby, f, mode).value);
  const rest = units(x, f);
  const eighths = Number((rest.n * 8n) / rest.d);
  const bits = [
    eighths >> 2,
    (eighths >> 1) & 1,
    Number(eighths & 1 || (rest.n * 8n) % rest.d > 0n),
  ];
  const down = x.negative && rest.n ? rest.d - rest.n : rest.n;
  const chance = { negative: false, n: down, d: rest.d }; // of the upper neighbour, by chance
  return {
    x,
    results,
    low: results[NEGATIVE],
    high: results[POSITIVE],
    kept: rest.whole,
    bits,
    chance,
  };
}

/** How many of 1,000 stochastic roundings, with the library's draws, go to the upper neighbour. */
export function timesUp({ f, seed }, { x, low }) {
  const [random, near] = [stream(seed), double(x)];
  const indices = Array.from({ length: DRAWS }, (_, i) => i);
  return indices.filter((i) => round(near, f, STOCHASTIC, false, random(i)).value !== low).length;
}

// In words --------------------------------------------------------------------------------

/** Where it lies between its neighbours, from 0 on. */
export function verdict({ x, low, bits: [guard, ...rest] }) {
  if (double(x, true) === low) return "exact";
  if (!rest.includes(1)) return guard ? "a tie" : "past the range";
  return `${guard ? "past" : "short of"} the middle${x.negative ? ", seen from 0" : ""}`;
}

const inWords = (x) => shown(exact(x));

/** The result of the chosen mode. */
function result(state, all) {
  const { f, mode } = state;
  if (mode !== STOCHASTIC) {
    const value = all.results[mode];
    return `${inWords(value)} (${inHex(encode(value, f), f)})`;
  }
  const [low, high] = [inWords(all.low), inWords(all.high)];
  const odds = `${high} with probability ${brief(double(all.chance), 4)}, else ${low}`;
  return `${odds}; in ${DRAWS.toLocaleString("en")} draws it gave ${high} ${timesUp(state, all)} times`;
}

/** The number between its neighbours, its three bits, and what the chosen mode makes of it. */
export function sentence(state) {
  const all = found(state);
  const start = `${shown(all.x)} in ${state.f.name}: `;
  if (verdict(all) === "exact")
    return `${start}it is the value ${inWords(all.low)}; every mode keeps it.`;
  const [guard, next, sticky] = all.bits;
  const [low, high] = [inWords(all.low), inWords(all.high)];
  const between = low === high ? `past ${low}` : `between ${low} and ${high}`;
  const bits = `guard ${guard}, round ${next}, sticky ${sticky}`;
  const name = modeWords(MODES[state.mode]);
  const gives = `${name[0].toUpperCase()}${name.slice(1)} gives ${result(state, all)}`;
  return `${start}${between}; ${bits}: ${verdict(all)}. ${gives}.`;
}

// What the reader does --------------------------------------------------------------------

/** The part of a state that the model holds. */
export const plain = ({ entry, eighths, f, mode }) => ({
  entry,
  eighths,
  format: f.name,
  mode: MODES[mode],
});

/** The state with some of that part changed. */
export function changed(state, record) {
  const wanted = { ...plain(state), ...record };
  const f = formatNamed(wanted.format, state.formats);
  const base = readWithin("The number", wanted.entry, f);
  const eighths = wholeNumber("The slider", wanted.eighths, 0, 16);
  return { ...state, f, entry: wanted.entry, base, eighths, mode: modeNamed(wanted.mode) };
}

// The page --------------------------------------------------------------------------------

const bitCell = (bit, colour) =>
  element(
    "span",
    { class: bit ? "mplab-cell mplab-is-1" : "mplab-cell", style: `--field:${colour}` },
    bit,
  );

/** The bits that are kept, then guard, round and sticky under their names. */
function bitParts(all, f) {
  const digits = all.kept.toString(2).padStart(f.precision, "0");
  const kept = [...digits].map((bit) => bitCell(Number(bit), f.colour));
  const rest = all.bits.map((bit) => bitCell(bit, "#707075"));
  const named = (name, bits) => element("div", {}, name, element("div", {}, ...bits));
  const cut = rest.map((cell, i) => named("GRS"[i], [cell]));
  const sign = all.x.negative ? "− " : "+ ";
  const row = element("div", { class: "mplab-cut" }, named("kept", [sign, ...kept]), ...cut);
  return [row, element("div", {}, `cut after bit ${f.precision}: ${verdict(all)}`)];
}

/** The number between its neighbours, with their middle. */
function placePicture(all, f) {
  const { x, low, high, chance } = all;
  const isValue = low === high;
  const part = isValue || !Number.isFinite(low) || !Number.isFinite(high) ? 0.5 : double(chance);
  const at = (share) => `${12 + 76 * share}%`;
  const text = (share, y, words) =>
    shape("text", { x: at(share), y, "text-anchor": "middle" }, words);
  const mark = { y1: 22, y2: 42, stroke: f.colour, "stroke-width": 3 };
  const tick = (share, more) => shape("line", { x1: at(share), x2: at(share), ...mark, ...more });
  const ends = isValue
    ? [[0.5, low]]
    : [
        [0, low],
        [1, high],
      ];
  const middle = { stroke: "#707075", "stroke-width": 1, "stroke-dasharray": "3 2" };
  return shape(
    "svg",
    { height: 64 },
    shape("line", { x1: at(0), x2: at(1), y1: 32, y2: 32, stroke: "#707075" }),
    ...ends.flatMap(([share, value]) => [tick(share), text(share, 58, brief(value))]),
    ...(isValue ? [] : [tick(0.5, middle), text(0.5, 58, "middle")]),
    shape("circle", { cx: at(part), cy: 32, r: 6 }),
    text(part, 14, brief(double(x))),
  );
}

/** What a mode gives, and its code. */
function outcome(all, f, mode) {
  const value = all.results[mode];
  if (mode !== STOCHASTIC || all.low === all.high)
    return [brief(value), inHex(encode(value, f), f)];
  return [`${brief(all.high)} at ${brief(100 * double(all.chance), 3)}%`, ""];
}

/** A line for each mode, the chosen one marked. */
const modeRows = (all, { f, mode }) =>
  LESSON_MODES.map((name, i) => {
    const [value, code] = outcome(all, f, i).map((words) => element("td", { role: "cell" }, words));
    const head = element("th", { scope: "row", role: "rowheader" }, modeWords(name));
    return element("tr", { role: "row", class: i === mode && "mplab-chosen" }, head, value, code);
  });

/** The parts of the explorer, and the function that shows a state. */
function build(act) {
  const change = (name) => (value) => act((s) => changed(s, { [name]: value }));
  const entry = textField(change("entry"));
  const eighths = slider(0, 16, change("eighths"));
  const [format, mode] = ["format", "mode"].map((name) => chooser(change(name)));
  const bits = element("div");
  const place = element("div", { class: "mplab-figure", role: "img" });
  const rows = element("tbody", { role: "rowgroup" });
  const table = { class: "mplab-picture", role: "table", "aria-label": "what each mode gives" };

  function show(state, note) {
    const all = found(state);
    if (!note) entry.value = state.entry;
    eighths.value = state.eighths;
    const names = state.formats.map(({ name }) => name);
    showChoice(format, names, state.f.name);
    showChoice(mode, LESSON_MODES, MODES[state.mode], modeWords);
    bits.replaceChildren(...bitParts(all, state.f));
    place.replaceChildren(placePicture(all, state.f));
    place.setAttribute("aria-label", `The place of ${shown(all.x)} between its neighbours.`);
    rows.replaceChildren(...modeRows(all, state));
  }

  const moved = labelled("away from 0, in eighths of an ulp", eighths);
  const parts = [
    line(labelled("number", entry), labelled("format", format), labelled("rounding", mode)),
    element("div", { class: "mplab-sliders-box" }, moved),
    bits,
    place,
    element("table", table, rows),
  ];
  return { parts, show };
}

/** The first state, with the model's format; the model's number is read later. */
function begin(model, formats) {
  const f = formatNamed(model.get("format"), formats);
  return { formats, f, entry: "0", base: exact(0), eighths: 0, mode: 0, seed: model.get("seed") };
}

/** anywidget's entry: show an explorer in an element, and follow the reader and the model. */
function render(place) {
  const question = "Which bits decide where a number goes?";
  const functions = { begin, build, sentence, plain, changed };
  return live(place, { question, ...functions, ...links("rounding", plain, changed) });
}

export default { render };
