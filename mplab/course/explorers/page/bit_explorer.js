import {
  bitsOf,
  decode,
  double,
  EVENTS,
  encode,
  exact,
  formatNamed,
  inFull,
  inHex,
  isCode,
  kindOf,
  MODES,
  modeNamed,
  next,
  read,
  readCode,
  round,
  shown,
  ulp,
} from "./numbers.js";
import {
  chooser,
  element,
  labelled,
  line,
  live,
  modeWords,
  onBoth,
  showChoice,
  slider,
  textField,
} from "./parts.js";
import { raised } from "./spelling.js";

// What is shown ---------------------------------------------------------------------------

const signed = (q) => (q.negative ? -q.n : q.n);
const inBinary = (field, width) => (width ? field.toString(2).padStart(width, "0") : "");

/** What a format makes of an exact number: value, code, error in ulps, and events. */
export function reading(number, f, mode, saturate) {
  const nearby = double(number, true);
  const { value, events } = round(nearby, f, mode, saturate);
  let error = null;
  if (Number.isFinite(value) && number.d) {
    const q = exact(value);
    const unit = exact(ulp(nearby, f));
    const n = (signed(q) * number.d - signed(number) * q.d) * unit.d;
    error = double({ negative: n < 0n, n: n < 0n ? -n : n, d: q.d * number.d * unit.n });
  }
  return { f, value, events, error, code: encode(value, f), kind: kindOf(value, f) };
}

const names = (events) => Object.keys(EVENTS).filter((name) => events & EVENTS[name]);

/** An error in three digits; one below 2^-1075 ulp became 0 as a double. */
function inUlps({ error, events }) {
  if (!error) return events ? "below 2⁻¹⁰⁷⁴ ulp" : "none";
  const size = Math.abs(error);
  const digits = size < 1e-4 || size >= 1e6 ? size.toExponential(2) : Number(size.toPrecision(3));
  return `${error < 0 ? "−" : "+"}${String(digits).replace("-", "−")} ulp`;
}

/** The fields of a code, each with its name, highest and lowest bit. */
export function fieldsOf(f) {
  if (f.specials === "TWOS_COMPLEMENT") return [{ name: "sign", high: f.bits - 1, low: 0 }];
  const trailing = f.precision - 1;
  return [
    { name: "sign", high: f.bits - 1, low: f.bits - Number(f.signed) },
    { name: "exponent", high: f.exponent_bits + trailing - 1, low: trailing },
    { name: "trailing significand", high: trailing - 1, low: 0 },
  ].filter(({ high, low }) => high >= low);
}

/** The number that a field of a code holds. */
export const fieldOf = (code, { high, low }) => Math.floor(code / 2 ** low) % 2 ** (high - low + 1);

/** The code with another number in a field. */
export const withField = (code, field, number) =>
  code + (number - fieldOf(code, field)) * 2 ** field.low;

/** Sign, biased exponent, trailing significand. */
function threeFields(code, f) {
  const magnitude = f.signed ? code % f.signCode : code;
  return [Number(code !== magnitude), Math.floor(magnitude / f.hidden), magnitude % f.hidden];
}

/** How a code is read, step by step. */
function explained(code, f) {
  const value = decode(code, f);
  const kind = kindOf(value, f);
  const ending = `Value ${shown(exact(value))} (${kind}).`;
  if (f.specials === "TWOS_COMPLEMENT") {
    const integer = code < f.signCode ? code : code - 2 * f.signCode;
    const power = `2${raised(f.emin - f.precision + 1)}`;
    return `the integer ${shown(exact(integer))} in two's complement, times ${power}. ${ending}`;
  }
  const [sign, biased, trailing] = threeFields(code, f);
  const digits = inBinary(trailing, f.precision - 1);
  const field = `${f.signed ? `sign ${sign}, ` : ""}exponent field ${inBinary(biased, f.exponent_bits)}`;
  if (!Number.isFinite(value)) return `${field} and trailing significand ${digits} mean ${kind}.`;
  const leading = Number(biased > 0 || !f.has_zero);
  const power = `2${raised((leading ? biased : 1) - f.bias)}`;
  const how = leading
    ? `= ${biased}, less the bias ${f.bias} gives ${power}`
    : `= 0 means no leading 1, and ${power}`;
  const significand = shown(exact(leading + trailing / f.hidden));
  return `${field} ${how}; significand ${leading}.${digits} in binary = ${significand}. ${ending}`;
}

/** How the code is read, what is lost, and its neighbours. */
export function sentence({ f, code, number, mode, saturate }) {
  const mine = reading(number, f, mode, saturate);
  const value = decode(code, f);
  let words = `${f.name} ${inHex(code, f)}: ${explained(code, f)}`;
  if (mine.code === null) words += ` You asked for NaN: ${f.name} has no code for it.`;
  if (mine.events) {
    const amount = mine.error === null ? "" : `error ${inUlps(mine)}, `;
    words += ` You asked for ${shown(number)}: ${amount}${names(mine.events).join(", ")}.`;
    if (mine.events & EVENTS.OVERFLOW) {
      words += ` The largest number of ${f.name} is ${shown(exact(f.maxFinite))}.`;
    }
  }
  if (!Number.isFinite(value)) return words;
  for (const [where, direction] of [
    ["below", -1],
    ["above", 1],
  ]) {
    const other = next(value, f, direction);
    const otherCode = encode(other, f);
    const distance = Math.abs(other - value);
    const away =
      distance > 0 && distance < Infinity
        ? `, 2${raised(Math.round(Math.log2(distance)))} away`
        : "";
    const inCode = otherCode === null ? "no code" : inHex(otherCode, f);
    words += ` Next ${where}: ${shown(exact(other))} (${inCode}${away}).`;
  }
  return words;
}

/** Lines of a name and words: the value in full, and the number as a double. */
export function digits({ f, code, number }) {
  const value = decode(code, f);
  const lines = [];
  if (Number.isFinite(value)) lines.push([`${f.name} in full`, inFull(exact(value))]);
  const nearest = double(number);
  const past = number.d && !Number.isFinite(nearest) ? ": past the range" : "";
  const bits = bitsOf(nearest).toString(16).toUpperCase().padStart(16, "0");
  lines.push([`nearest double (FP64) 0x${bits}`, inFull(exact(nearest)) + past]);
  return lines;
}

/** The error with three decimals; nothing where there is none. */
function briefError({ error, events }) {
  if (error === null || !(error || events)) return "";
  if (Math.abs(error) < 0.0005) return "<0.001 ulp";
  return `${error < 0 ? "−" : "+"}${Math.abs(error).toFixed(3)} ulp`;
}

/** The event that says most; if there is none, infinity, NaN or exact. */
function briefEvents({ events, kind }) {
  const most = ["INVALID", "OVERFLOW", "UNDERFLOW", "INEXACT"].find(
    (name) => events & EVENTS[name],
  );
  return most?.toLowerCase() ?? (["infinity", "NaN"].includes(kind) ? kind : "exact");
}

/** The words of a format's row: value, code, error, event. */
export const row = (mine) => [
  shown(exact(mine.value)),
  mine.code === null ? "no code" : inHex(mine.code, mine.f),
  briefError(mine),
  briefEvents(mine),
];

// What the reader does --------------------------------------------------------------------

/** The state once a number or a code has been typed; a code is taken bit for bit. */
export function typed(state, words) {
  const { f, mode, saturate } = state;
  const number = read(words, f);
  const code = isCode(words) ? readCode(words, f) : reading(number, f, mode, saturate).code;
  return { ...state, entry: words, number, code: code ?? 0 };
}

/** The state once a code has been set by its bits, a slider or a step. */
export const coded = (state, code) => ({
  ...state,
  code,
  number: exact(decode(code, state.f)),
  entry: inHex(code, state.f),
});

/** The state for the same number in another format, or with other rules. */
export function ruled(state, change) {
  const after = { ...state, ...change };
  const code = reading(after.number, after.f, after.mode, after.saturate).code ?? 0;
  return { ...after, code, entry: isCode(state.entry) ? inHex(code, after.f) : state.entry };
}

/** The state after a step to the next value, up (1) or down (-1); there may be none. */
export function stepped(state, direction) {
  const code = encode(next(decode(state.code, state.f), state.f, direction), state.f);
  return code === null || code === state.f.nanCode ? state : coded(state, code);
}

/** The state in the format with this name. */
const inFormat = (state, name) => ruled(state, { f: formatNamed(name, state.formats) });

/** The part of a state that the model holds, and the state with some of it changed. */
const plain = ({ entry, f }) => ({ entry, format: f.name });

function changed(state, { entry, format }) {
  const after = format === undefined ? state : inFormat(state, format);
  return entry === undefined ? after : typed(after, entry);
}

/** The permalink of a state: its format and code. */
export const permalink = ({ f, code }) =>
  `#${f.name.toLowerCase()}/${inHex(code, f).toLowerCase()}`;

/** The state that a permalink names; the same state for another link. */
export function linked(state, hash) {
  const [, name, code] = /^#([^/?.]+)\/(.+)/.exec(hash) ?? [];
  if (!name) return state;
  const f = formatNamed(name, state.formats);
  return coded({ ...state, f }, readCode(code, f));
}

// The page --------------------------------------------------------------------------------

const FOLDED = 130; // characters past which digits and sums are folded away

/** A line with its name; a long one is opened by a click or by Enter. */
function folded([name, words]) {
  if (words.length <= FOLDED) return element("div", { class: "mplab-digits" }, `${name}: ${words}`);
  const all = `${name}: ${words.slice(0, 60)}… (all ${words.length.toLocaleString("en")} characters)`;
  const inside = element("div", { class: "mplab-digits" }, words);
  return element("details", {}, element("summary", {}, all), inside);
}

/** The bits of a code as cells in the colours of their fields, hidden from screen readers. */
function strip({ code, f }) {
  const cells = fieldsOf(f).flatMap((field) =>
    [...inBinary(fieldOf(code ?? 0, field), field.high - field.low + 1)].map((bit) =>
      element("i", { class: `mplab-${field.name.split(" ")[0]} mplab-is-${bit}` }),
    ),
  );
  return element("span", { class: "mplab-strip", "aria-hidden": true }, ...cells);
}

/** A cell with its role: a table that a narrow page lays out in lines loses the implied roles. */
const cell = (attributes, words) => element("td", { ...attributes, role: "cell" }, words);

/** The row of a format. */
function tableRow(mine, chosen) {
  const square = element("b", { class: "mplab-square", style: `background:${mine.f.colour}` });
  const [value, code, error, event] = row(mine).map((words) => cell({}, words));
  const name = element("th", { scope: "row", role: "rowheader" }, square, mine.f.name);
  const bits = cell({ class: "mplab-cells" }, strip(mine));
  const look = { role: "row", class: chosen && "mplab-chosen" };
  return element("tr", look, name, value, code, bits, error, event);
}

/** A button for each bit of a code, in groups by its fields; `press` is given a bit's weight. */
const bitGroups = (f, press) =>
  fieldsOf(f).map(({ name, high, low }) => {
    const field = `mplab-${name.split(" ")[0]}`;
    const button = (weight) =>
      element("button", {
        type: "button",
        class: `mplab-bit ${field}`,
        "data-weight": weight,
        click: ({ detail }) => detail || press(weight), // by mouse: painted already
      });
    const bits = Array.from({ length: high - low + 1 }, (_, i) => button(high - i));
    const label = element("span", { class: `mplab-name ${field}` }, name);
    const group = { role: "group", "aria-label": name };
    return element("div", group, label, element("div", {}, ...bits));
  });

/** The bits of a format as buttons; dragging paints them: `put` sets each one that differs. */
function bitButtons(f, bitAt, put) {
  let painted = null;
  const paint = (weight) => {
    if (bitAt(weight) !== painted) put(weight, painted);
  };
  const press = (weight) => {
    painted = 1 - bitAt(weight);
    paint(weight);
  };
  const weightUnder = ({ clientX, clientY }) => {
    const found = root.getRootNode().elementFromPoint(clientX, clientY);
    return found && root.contains(found) ? found.dataset.weight : undefined;
  };
  const listeners = {
    pointerdown: (event) => {
      const weight = event.target.dataset.weight;
      if (weight === undefined || event.button) return;
      event.target.releasePointerCapture?.(event.pointerId);
      press(Number(weight));
    },
    pointermove: (event) => {
      const weight = event.buttons === 1 && painted !== null ? weightUnder(event) : undefined;
      if (weight !== undefined) paint(Number(weight));
    },
    keydown: (event) => {
      const all = [...root.querySelectorAll("button")];
      const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (way) all[all.indexOf(event.target) + way]?.focus();
    },
    focusin: (event) => {
      for (const bit of root.querySelectorAll("button"))
        bit.tabIndex = bit === event.target ? 0 : -1;
    },
  };
  const root = element("div", { class: "mplab-bits", ...listeners }, ...bitGroups(f, press));
  return root;
}

/** Update the buttons from the bits; the Tab key stops at only one of them. */
function showBits(root, f, bitAt) {
  const fields = fieldsOf(f);
  for (const [i, bit] of root.querySelectorAll("button").entries()) {
    const weight = Number(bit.dataset.weight);
    const { name } = fields.find(({ high, low }) => weight <= high && weight >= low);
    const value = bitAt(weight);
    bit.textContent = value;
    bit.setAttribute("aria-pressed", String(value === 1));
    bit.title = `bit ${weight}, ${name}: ${value}`;
    bit.setAttribute("aria-label", bit.title);
    if (!root.contains(document.activeElement)) bit.tabIndex = i ? -1 : 0;
  }
}

/** A slider for each field that is wider than a bit, together with the field. */
const fieldSliders = (f, act) =>
  fieldsOf(f)
    .filter(({ high, low }) => high > low)
    .map((field) => {
      const most = 2 ** (field.high - field.low + 1) - 1;
      const move = (number) => act((now) => coded(now, withField(now.code, field, number)));
      return { field, control: slider(0, most, move) };
    });

/** The controls of a code, made anew for each format, and the function that shows a code. */
function codeControls(act, now) {
  const bits = element("div", { class: "mplab-bits-box" });
  const sliders = element("div", { class: "mplab-sliders-box" });
  let f = null;
  let fields = [];
  const one = (weight) => ({ high: weight, low: weight });
  const bitAt = (weight) => fieldOf(now().code, one(weight));
  const put = (weight, bit) => act((s) => coded(s, withField(s.code, one(weight), bit)));
  function show(state) {
    if (state.f !== f) {
      f = state.f;
      fields = fieldSliders(f, act);
      bits.replaceChildren(bitButtons(f, bitAt, put));
      sliders.replaceChildren(...fields.map(({ field, control }) => labelled(field.name, control)));
    }
    showBits(bits.firstChild, f, bitAt);
    const value = shown(exact(decode(state.code, f)));
    for (const { field, control } of fields) {
      control.value = fieldOf(state.code, field);
      control.ariaValueText = `${control.value} of ${control.max}: the value is ${value}`;
    }
  }
  return { parts: [bits, sliders], show };
}

/** The table of all formats, and its body. */
function tableOfFormats() {
  const heads = ["format", "value", "code", "bits", "error", "event"];
  const head = element("tr", {}, ...heads.map((name) => element("th", { scope: "col" }, name)));
  const body = element("tbody", { role: "rowgroup" });
  const table = { class: "mplab-picture", role: "table" };
  return [element("table", table, element("thead", {}, head), body), body];
}

/** The parts of the explorer, and the function that shows a state. */
function build(act, now) {
  const entry = textField((words) => act((s) => typed(s, words)));
  const format = chooser((name) => act((s) => inFormat(s, name)));
  const mode = chooser((name) => act((s) => ruled(s, { mode: modeNamed(name) })));
  const saturate = element("input", {
    type: "checkbox",
    change: () => act((s) => ruled(s, { saturate: saturate.checked })),
  });
  const step = (words, way) =>
    element("button", { type: "button", click: () => act((s) => stepped(s, way)) }, words);
  const code = codeControls(act, now);
  const [table, rows] = tableOfFormats();
  const inDigits = element("div");
  const modes = MODES.filter((name) => name !== "STOCHASTIC");

  function show(state, note) {
    const { formats, f, number } = state;
    if (!note) entry.value = state.entry;
    const names = formats.map(({ name }) => name);
    showChoice(format, names, f.name);
    showChoice(mode, modes, MODES[state.mode], modeWords);
    saturate.checked = state.saturate;
    code.show(state);
    const made = formats.map((g) =>
      tableRow(reading(number, g, state.mode, state.saturate), g === f),
    );
    rows.replaceChildren(...made);
    inDigits.replaceChildren(...digits(state).map(folded));
  }

  const rules = [labelled("rounding", mode), labelled("saturate", saturate)];
  const parts = [
    line(labelled("number or code", entry), labelled("bits of", format)),
    ...code.parts,
    line(step("next value down", -1), step("next value up", 1), ...rules),
    element("div", { class: "mplab-wide" }, table),
  ];
  return { parts, below: [inDigits], show };
}

/** The first state, with the model's format; the model's number is read later. */
function begin(model, formats) {
  const f = formatNamed(model.get("format"), formats);
  return coded({ formats, f, mode: 0, saturate: false }, 0);
}

/** anywidget's entry: show an explorer in an element, and follow the reader and the model. */
function render({ model, el }) {
  for (const [name, colour] of Object.entries(model.get("colours"))) {
    el.style.setProperty(`--${name.split(" ")[0]}`, onBoth(colour));
  }
  const question = "Which bits make this number?";
  const functions = { begin, build, sentence, plain, changed, permalink, linked };
  return live({ model, el }, { question, ...functions });
}

export default { render };
