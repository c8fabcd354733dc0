import {
  bitsOf,
  decode,
  double,
  EVENTS,
  encode,
  exact,
  hexadecimal,
  inFull,
  isCode,
  kindOf,
  MODES,
  makeFormat,
  next,
  ownFormat,
  read,
  readCode,
  round,
  shown,
  ulp,
} from "./numbers.js";
import { element, labelled, raised } from "./parts.js";

// What is shown ---------------------------------------------------------------------------

const signed = (q) => (q.negative ? -q.n : q.n);
const inHex = (code, f) =>
  `0x${code
    .toString(16)
    .toUpperCase()
    .padStart(Math.ceil(f.bits / 4), "0")}`;
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

/** An error in three digits; double makes 0 of one below 2^-1075 ulp. */
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

/** The powers of two that the bits of a value's significand stand for, the largest first. */
export function sumOfPowers(value) {
  const { negative, n, d } = exact(value);
  const lowest = 1 - d.toString(2).length;
  const bits = [...n.toString(2)];
  const powers = bits.flatMap((bit, i) =>
    bit === "1" ? [`2${raised(lowest + bits.length - 1 - i)}`] : [],
  );
  const words = powers.join(" + ");
  if (!negative) return words;
  return powers.length === 1 ? `−${words}` : `−(${words})`;
}

/** Lines of a name and words: the value in full and as a sum, and the number as a double. */
export function digits({ f, code, number }) {
  const value = decode(code, f);
  const lines = [];
  if (Number.isFinite(value)) {
    lines.push([`${f.name} in full`, inFull(exact(value))]);
    if (value) lines.push([`${f.name} as a sum`, sumOfPowers(value)]);
    lines.push([`${f.name} in hexadecimal`, hexadecimal(value)]);
  }
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

/** The event that says most; what kind of number it is where there is none. */
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

/** The state once a code has been made by its bits, a slider or a step. */
export const coded = (state, code) => ({
  ...state,
  code,
  number: exact(decode(code, state.f)),
  entry: inHex(code, state.f),
});

/** The state in another format, or with other rules, where the same number is asked for. */
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

/** The format of a name, in letters of either size, or one described as E5M6. */
export const formatNamed = (name, formats) =>
  formats.find((f) => f.name.toLowerCase() === name.trim().toLowerCase()) ?? ownFormat(name);

/** The permalink of a state: its format and code. */
export const permalink = ({ f, code }) =>
  `#${f.name.toLowerCase()}/${inHex(code, f).toLowerCase()}`;

/** The state that a permalink names. */
export function linked(state, hash) {
  const [name, code] = hash.slice(1).split("/");
  const f = formatNamed(name, state.formats);
  const formats = state.formats.some((g) => g.name === f.name)
    ? state.formats
    : [...state.formats, f];
  return coded({ ...state, f, formats }, readCode(code, f));
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

/** The bits of a code as cells in the colours of their fields, for the eye alone. */
function strip({ code, f }) {
  const cells = fieldsOf(f).flatMap((field) =>
    [...inBinary(fieldOf(code ?? 0, field), field.high - field.low + 1)].map((bit) =>
      element("i", { class: `mplab-${field.name.split(" ")[0]} mplab-is-${bit}` }),
    ),
  );
  return element("span", { class: "mplab-strip", "aria-hidden": true }, ...cells);
}

/** A cell; roles are said, as a table that a narrow page lays out in lines loses its own. */
const cell = (attributes, words) => element("td", { ...attributes, role: "cell" }, words);

/** The row of a format. */
function tableRow(mine, chosen) {
  const square = element("b", { class: "mplab-square", style: `background:${mine.f.colour}` });
  const [value, code, error, event] = row(mine).map((words) => cell({}, words));
  const name = element("th", { scope: "row", role: "rowheader" }, square, mine.f.name);
  const bits = cell({ class: "mplab-cells" }, strip(mine));
  return element(
    "tr",
    { role: "row", class: chosen && "mplab-chosen" },
    name,
    value,
    code,
    bits,
    error,
    event,
  );
}

/** The bits of the chosen format as buttons, which paint when dragged over. */
function bitButtons(state, act) {
  let painted = null;
  const paint = (weight) =>
    act((now) => {
      const field = { high: weight, low: weight };
      return fieldOf(now.code, field) === painted
        ? now
        : coded(now, withField(now.code, field, painted));
    });
  const weightUnder = ({ clientX, clientY }) => {
    const found = root.getRootNode().elementFromPoint(clientX, clientY);
    return found && root.contains(found) ? found.dataset.weight : undefined;
  };
  const button = (weight, name) =>
    element("button", {
      type: "button",
      class: `mplab-bit mplab-${name.split(" ")[0]}`,
      "data-weight": weight,
      click: (event) => {
        if (event.detail) return; // by mouse: painted already
        painted = 1 - fieldOf(state().code, { high: weight, low: weight });
        paint(weight);
      },
    });
  const groups = fieldsOf(state().f).map(({ name, high, low }) => {
    const bits = Array.from({ length: high - low + 1 }, (_, i) => button(high - i, name));
    const label = element("span", { class: `mplab-name mplab-${name.split(" ")[0]}` }, name);
    return element(
      "div",
      { role: "group", "aria-label": name },
      label,
      element("div", {}, ...bits),
    );
  });
  const root = element(
    "div",
    {
      class: "mplab-bits",
      pointerdown: (event) => {
        const weight = event.target.dataset.weight;
        if (weight === undefined || event.button) return;
        event.target.releasePointerCapture?.(event.pointerId);
        painted = 1 - fieldOf(state().code, { high: Number(weight), low: Number(weight) });
        paint(Number(weight));
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
    },
    ...groups,
  );
  return root;
}

/** Bring the buttons to the code; of all of them, one is a stop of the Tab key. */
function showBits(root, { f, code }) {
  const fields = fieldsOf(f);
  for (const [i, bit] of root.querySelectorAll("button").entries()) {
    const weight = Number(bit.dataset.weight);
    const { name } = fields.find(({ high, low }) => weight <= high && weight >= low);
    const value = fieldOf(code, { high: weight, low: weight });
    bit.textContent = value;
    bit.setAttribute("aria-pressed", String(value === 1));
    bit.setAttribute("aria-label", `bit ${weight}, ${name}: ${value}`);
    bit.title = `bit ${weight}, ${name}: ${value}`;
    if (!root.contains(document.activeElement)) bit.tabIndex = i ? -1 : 0;
  }
}

/** A slider for each field that is wider than a bit. */
function sliders(state, act) {
  return fieldsOf(state().f)
    .filter(({ high, low }) => high > low)
    .map((field) => {
      const slider = element("input", {
        type: "range",
        min: 0,
        max: 2 ** (field.high - field.low + 1) - 1,
        input: () => act((now) => coded(now, withField(now.code, field, Number(slider.value)))),
      });
      slider.show = ({ code }) => {
        slider.value = fieldOf(code, field);
      };
      return labelled(field.name, slider);
    });
}

/** What the model holds, as a state; the number is still to be read. */
function begin(model) {
  const formats = model.get("formats").map(makeFormat);
  const f = formats.find(({ name }) => name === model.get("format"));
  const start = { formats, f, mode: 0, saturate: false, number: exact(0), code: 0, entry: "" };
  return coded(start, 0);
}

/** anywidget's entry: show an explorer in an element, and follow the reader and the model. */
export function render({ model, el }) {
  let state = begin(model);
  let note = "";
  let widgets = null;
  const now = () => state;
  const options = (words) => words.map((word) => element("option", {}, word));
  const entry = element("input", {
    type: "text",
    autocomplete: "off",
    spellcheck: "false",
    change: () => act((s) => typed(s, entry.value)),
  });
  const format = element("select", {
    change: () => act((s) => ruled(s, { f: formatNamed(format.value, s.formats) })),
  });
  const own = element("input", {
    type: "text",
    placeholder: "E3M4",
    size: 6,
    autocomplete: "off",
    change: () => act((s) => added(s, own.value)),
  });
  const mode = element(
    "select",
    {
      change: () => act((s) => ruled(s, { mode: MODES.indexOf(mode.value) })),
    },
    ...options(MODES.filter((name) => name !== "STOCHASTIC")),
  );
  const saturate = element("input", {
    type: "checkbox",
    change: () => act((s) => ruled(s, { saturate: saturate.checked })),
  });
  const step = (words, way) =>
    element("button", { type: "button", click: () => act((s) => stepped(s, way)) }, words);
  const boxes = Object.fromEntries(
    ["bits", "sliders", "digits"].map((name) => [
      name,
      element("div", { class: `mplab-${name}-box` }),
    ]),
  );
  const table = element("tbody", { role: "rowgroup" });
  const heads = ["format", "value", "code", "bits", "error", "event"];
  const head = element("tr", {}, ...heads.map((name) => element("th", { scope: "col" }, name)));
  const picture = element(
    "table",
    { class: "mplab-picture", role: "table" },
    element("thead", {}, head),
    table,
  );
  const said = element("div", { role: "status", "aria-live": "polite" });
  const link = element("a", {}, "link to this code");
  const line = (...parts) => element("div", { class: "mplab-line" }, ...parts);
  const labels = [labelled("number or code", entry), labelled("bits of", format)];
  const rules = [labelled("rounding", mode), labelled("saturate", saturate)];

  function added(s, words) {
    const f = formatNamed(words, s.formats);
    const formats = s.formats.some(({ name }) => name === f.name) ? s.formats : [...s.formats, f];
    return ruled({ ...s, formats }, { f });
  }

  function attempt(action) {
    note = "";
    try {
      state = action(state);
    } catch (error) {
      if (!(error instanceof RangeError)) throw error;
      note = error.message;
    }
    show();
  }

  function act(action) {
    attempt(action);
    if (note) return;
    if (model.permalink) history.replaceState(null, "", permalink(state));
    model.set("entry", state.entry);
    model.set("format", state.f.name);
    model.save_changes();
  }

  function show() {
    if (widgets?.f !== state.f) {
      widgets = { f: state.f, bits: bitButtons(now, act), sliders: sliders(now, act) };
      boxes.bits.replaceChildren(widgets.bits);
      boxes.sliders.replaceChildren(...widgets.sliders);
      format.replaceChildren(...options(state.formats.map(({ name }) => name)));
      format.value = state.f.name;
    }
    showBits(widgets.bits, state);
    for (const { lastChild } of widgets.sliders) lastChild.show(state);
    if (!note) entry.value = state.entry;
    const { number, mode: rule, saturate: ends } = state;
    table.replaceChildren(
      ...state.formats.map((f) => tableRow(reading(number, f, rule, ends), f === state.f)),
    );
    said.textContent = `${note} ${sentence(state)}`.trim();
    boxes.digits.replaceChildren(...digits(state).map(folded));
    link.href = permalink(state);
  }

  function follow() {
    if (/^#[^/]+\/./.test(location.hash)) attempt((s) => linked(s, location.hash));
  }

  el.classList.add("mplab-page");
  el.dataset.lmSuppressShortcuts = "true"; // of JupyterLab, which else takes the arrow keys
  for (const [name, colour] of Object.entries(model.get("colours"))) {
    el.style.setProperty(`--${name.split(" ")[0]}`, colour);
  }
  el.replaceChildren(
    element("b", {}, "Which bits make this number?"),
    line(...labels, labelled("a format of your own", own)),
    boxes.bits,
    boxes.sliders,
    line(step("next value down", -1), step("next value up", 1), ...rules),
    element("div", { class: "mplab-wide" }, picture),
    said,
    boxes.digits,
    ...(model.permalink ? [link] : []),
  );
  attempt((s) => typed(s, model.get("entry")));
  model.on("change:entry", () => {
    if (model.get("entry") !== state.entry) attempt((s) => typed(s, model.get("entry")));
  });
  model.on("change:format", () => {
    if (model.get("format") !== state.f.name) attempt((s) => added(s, model.get("format")));
  });
  if (!model.permalink) return undefined;
  follow();
  window.addEventListener("hashchange", follow);
  return () => window.removeEventListener("hashchange", follow);
}

export default { render };
