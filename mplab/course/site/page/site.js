// What a page does by itself: predictions that hide what follows, explorers, the frame.
const fresh = !history.state; // neither Back nor a reload; folds that close soon set the state
const answers = [...document.querySelectorAll("details.answer")];
for (const answer of answers) answer.open = false;

// A field for each prediction; the browser keeps what is written, if it may.
for (const answer of answers) {
  const key = `${location.pathname} ${answer.previousElementSibling?.textContent.slice(0, 80)}`;
  const field = element("textarea", { rows: 2 });
  try {
    field.value = localStorage.getItem(key) ?? "";
    field.addEventListener("input", () => localStorage.setItem(key, field.value));
  } catch {} // no storage: the words stay until the page is left
  answer.before(element("label", { className: "mine" }, "My answer", field));
}

// Explorers' pictures on a phone --------------------------------------------------------------

const PHONE = matchMedia("(max-width: 600px)");
const [ACROSS, PAD, TALLER, LEADING] = [340, 16, 1.3, 14]; // the letters are 13 high
const pen = document.createElement("canvas").getContext("2d");

/** The width of words in a text element. */
function extent(text, words) {
  const [weight, size] = ["font-weight", "font-size"].map((name) => text.getAttribute(name));
  pen.font = `${weight ?? ""} ${size ?? 13}px system-ui, "DejaVu Sans", sans-serif`;
  return pen.measureText(words).width;
}

/** Break words into lines no wider than `room`, if possible. */
function inLines(text, room) {
  const lines = [];
  for (const word of text.textContent.split(" ")) {
    const longer = `${lines.at(-1)} ${word}`;
    if (lines.length && extent(text, longer) <= room) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines;
}

/** Leave out every second tick, or more, where two would touch. */
function thin(row) {
  const ticks = row.filter(({ text }) => /^[^a-z]./i.test(text.textContent));
  const gap = Math.min(...ticks.slice(1).map(({ x }, i) => x - ticks[i].x));
  const room = Math.max(...ticks.map(({ text }) => extent(text, text.textContent))) + 3;
  for (const [i, { text }] of ticks.entries()) if (i % Math.ceil(room / gap)) text.remove();
}

/** Place the labels of one row, and wrap them. */
function fit(all) {
  all.sort((a, b) => a.x - b.x);
  thin(all.filter(({ text }) => text.matches("[text-anchor=middle]")));
  const row = all.filter(({ text }) => text.parentNode);
  let end = -9;
  row.forEach(({ text, x, y }, i) => {
    const [before, after] = [row[i - 1]?.x ?? 0, row[i + 1]?.x ?? ACROSS];
    const anchor = text.getAttribute("text-anchor");
    const [left, right] = [x - before, after - x];
    const middle = row.length === 1 ? ACROSS : Math.min(i ? left : ACROSS, right * 2);
    const room = { start: right, end: left, middle }[anchor] - 4;
    const lines = inLines(text, room);
    const width = Math.max(...lines.map((line) => extent(text, line)));
    const start = x - { start: 0, end: width, middle: width / 2 }[anchor];
    const two = text.textContent + row[i - 1]?.text.textContent; // bits may touch
    const touches = anchor === "middle" && start < end + 3 && two.length > 2;
    const least = touches ? end + 3 : 1;
    const moved = Math.min(Math.max(start, least), Math.max(ACROSS - 1 - width, 1)) - start;
    end = start + moved + width;
    text.textContent = "";
    lines.forEach((line, k) => {
      const span = document.createElementNS(text.namespaceURI, "tspan");
      span.textContent = line;
      span.setAttribute("x", x + moved);
      span.setAttribute("y", y + LEADING * (k - (lines.length - 1) / 2));
      text.append(span);
    });
  });
}

/** Redraw a picture for a phone: shapes are squeezed, words keep their size. */
function narrow(svg) {
  const { width, height } = svg.viewBox.baseVal;
  const panels = Number(svg.dataset.panels ?? 1);
  const [across, rows] = [((ACROSS - PAD) * panels) / width, new Map()];
  svg.setAttribute("viewBox", `0 0 ${ACROSS} ${height * panels * TALLER}`);
  svg.classList.add("narrow");
  const [ground, ...parts] = svg.children;
  ground.setAttribute("width", ACROSS);
  ground.setAttribute("height", height * panels * TALLER);
  for (const part of parts) {
    const get = (name) => Number(part.getAttribute(name));
    const path = () => Number.parseFloat(part.getAttribute("d").slice(1));
    const from = part.tagName === "path" ? path() : get(part.tagName === "circle" ? "cx" : "x");
    const panel = Math.min(Math.floor((from * panels) / width), panels - 1);
    const x = (old) => PAD + (old - (panel * width) / panels) * across;
    const y = (old) => (old + panel * height) * TALLER;
    if (part.tagName === "circle") {
      part.setAttribute("cx", x(get("cx")));
      part.setAttribute("cy", y(get("cy")));
      part.setAttribute("r", 0.8 * get("r"));
    } else if (part.tagName !== "text") {
      part.setAttribute("transform", `translate(${x(0)} ${y(0)}) scale(${across} ${TALLER})`);
      part.setAttribute("vector-effect", "non-scaling-stroke");
    } else if (part.hasAttribute("transform")) {
      part.setAttribute("transform", `translate(10 ${y(get("y"))}) rotate(-90)`);
      part.setAttribute("x", 0);
      part.setAttribute("y", 0);
    } else {
      const place = { text: part, x: x(get("x")), y: y(get("y")) };
      if (part.textContent.length === 1) part.setAttribute("font-size", 11);
      rows.set(place.y, [...(rows.get(place.y) ?? []), place]);
    }
  }
  for (const row of rows.values()) fit(row);
}
// Frozen explorers ------------------------------------------------------------------------------

const FIRST = 0x20; // the character that stands for the first part of a picture

/** The states of an explorer: see `Frozen.packed` in mplab/course/explorers/freezing.py. */
async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

/** A control's position, as a number. */
function position(control) {
  if (control.tagName === "SELECT") return control.selectedIndex;
  if (control.elements) return [...control.elements].findIndex(({ checked }) => checked);
  return control.type === "checkbox" ? Number(control.checked) : Number(control.value);
}

/** Move a control to a position. */
function put(control, number) {
  if (control.tagName === "SELECT") control.selectedIndex = number;
  else if (control.elements) control.elements[number].checked = true;
  else if (control.type === "checkbox") control.checked = Boolean(number);
  else control.value = number;
}

/** An element with attributes and children. */
function element(tag, attributes, ...children) {
  const made = Object.assign(document.createElement(tag), attributes);
  made.append(...children);
  return made;
}

/** Build a control as `Control` in mplab/course/explorers/freezing.py describes it, with its box. */
function built([kind, name, options, start, readout], group) {
  if (kind === "slider") {
    const power = name.endsWith("2^"); // its positions are exponents
    const words = power ? options.map((k) => `2${raised(k)}`) : options;
    const more = { type: "range", min: 0, max: options.length - 1, value: start };
    const control = element("input", { ...more, words });
    const label = element("label", {}, element("span", {}, name.replace(/( =)? ?2\^$/, "")), control);
    if (readout) label.append(element("output", { ariaLive: "off" }, words[start]));
    return [label, control];
  }
  if (kind === "tick") {
    const control = element("input", { type: "checkbox", checked: Boolean(start) });
    return [element("label", { className: "tick" }, control, name), control];
  }
  if (kind === "choice") {
    const choices = options.map((words, i) => new Option(words, words, false, i === start));
    const control = element("select", {}, ...choices);
    return [element("label", {}, element("span", {}, name), control), control];
  }
  const buttons = options.map((words, i) => {
    const more = { type: "radio", name: `${group} ${name}`, checked: i === start };
    return element("label", {}, element("input", more), words);
  });
  const control = element("fieldset", {}, element("legend", {}, name), ...buttons);
  return [control, control];
}

/** Let the controls of an explorer move its picture and its sentence. */
async function thaw(explorer) {
  const states = await unpacked(explorer.querySelector(".states").textContent);
  const [asked, names] = JSON.parse(explorer.querySelector(".asked").textContent);
  const sizes = asked.map(([, , options]) => options.length);
  const made = asked.map((control) => built(control, explorer.id));
  const controls = made.map(([, control]) => control);
  const buttons = names.map((name) => element("button", { type: "button" }, name));
  explorer.querySelector(".controls").replaceChildren(...made.map(([box]) => box), ...buttons);
  const link = element("a", {}, "link to this state");
  explorer.querySelector(".note").append(link);
  const [picture, sentence] = [".picture", ".sentence"].map((name) => explorer.querySelector(name));
  const number = () => controls.reduce((sum, c, i) => sum * sizes[i] + position(c), 0);

  function show() {
    const row = states.rows[states.at[number()]];
    const text = (word) => [...word].map((c) => states.parts[c.codePointAt(0) - FIRST]).join("");
    const [drawn, said] = row.map(text);
    picture.innerHTML = drawn;
    if (PHONE.matches && picture.querySelector("svg")) narrow(picture.querySelector("svg"));
    if (sentence.textContent !== said) sentence.textContent = said; // a reader says what is new
    link.href = `#${explorer.id}?${controls.map(position).join(".")}`;
    for (const control of controls.filter((each) => each.type === "range")) {
      const words = control.words[control.value];
      control.setAttribute("aria-valuetext", words);
      control.parentNode.querySelector("output")?.replaceChildren(words);
    }
  }

  /** Go to the state that the address names, if it names this explorer. */
  function follow() {
    const [, state] = location.hash.split(`#${explorer.id}?`);
    for (const [i, at] of (state?.split(".") ?? []).entries()) {
      if (/^\d+$/.test(at) && Number(at) < sizes[i]) put(controls[i], Number(at));
    }
    show();
  }

  for (const control of controls) control.addEventListener("input", show);
  for (const button of buttons) {
    button.addEventListener("click", () => {
      let left = states.moves[button.textContent][number()];
      for (let i = controls.length - 1; i >= 0; i--) {
        put(controls[i], left % sizes[i]);
        left = Math.floor(left / sizes[i]);
      }
      show();
    });
  }
  explorer.querySelector(".controls").hidden = false;
  explorer.querySelector(".still").hidden = true;
  follow();
  addEventListener("hashchange", follow);
  PHONE.addEventListener("change", show);
}

for (const [i, explorer] of [...document.querySelectorAll(".explorer")].entries()) {
  explorer.id = `explorer-${i + 1}`;
  if (explorer.matches(".frozen") && window.DecompressionStream) thaw(explorer);
}

// Exercises by hand -----------------------------------------------------------------------------

/** Evaluate numbers with + − · / ^ ( ); NaN for anything else. */
function computed(text) {
  const tokens = text.match(/0x[\da-f]+|(\d+\.?\d*|\.\d+)(e[-+]?\d+)?|\S/gi) ?? [];
  let at = 0;
  const next = (signs) => tokens[at]?.length === 1 && signs.includes(tokens[at]) && tokens[at++];
  function atom() {
    if (!next("(")) return Number(tokens[at++] ?? "x");
    const inside = sum();
    return next(")") ? inside : Number.NaN;
  }
  function power() {
    if (next("-")) return -power();
    if (next("+")) return power();
    const base = atom();
    return next("^") ? base ** power() : base;
  }
  const chain = (part, signs, apply) => () => {
    let value = part();
    for (let sign = next(signs); sign; sign = next(signs)) value = apply[sign](value, part());
    return value;
  };
  const product = chain(power, "*/", { "*": (a, b) => a * b, "/": (a, b) => a / b });
  const sum = chain(product, "+-", { "+": (a, b) => a + b, "-": (a, b) => a - b });
  const value = sum();
  return at < tokens.length ? Number.NaN : value;
}

/** The possible values of a typed number: "2,049" may be a whole number or a fraction. */
function readings(typed) {
  const text = plainly(typed.replace(/^[\s\w]*=/, "")).replace(/(\d)\s+(?=\d+\s*\/)/g, "$1+");
  const both = [text.replace(/,(?=\d{3}(?!\d))/g, ""), text.replace(",", ".")];
  return both.map(computed).filter((value) => !Number.isNaN(value));
}

/** The possible values of an answer; for a list, number by number. */
function answersIn(typed, wanted) {
  if (!Array.isArray(wanted)) return readings(typed);
  const bare = typed.replace(/^[\s\w]*=/, "").replace(/[[\](){}]/g, " ").trim();
  const items = bare.split(bare.includes(";") ? ";" : /[,\s]+/).map(readings);
  return items.every((each) => each.length) ? [0, -1].map((i) => items.map((e) => e.at(i))) : [];
}

/** Compare as `equal` in mplab/course/exercises/exercise.py does. */
function equal(given, wanted, tolerance) {
  if (Array.isArray(wanted)) {
    return given.length === wanted.length && given.every((x, i) => equal(x, wanted[i], tolerance));
  }
  const near = wanted !== 0 && Math.abs(given - wanted) <= tolerance * Math.abs(wanted);
  return Object.is(given, wanted) || near;
}

/** The check's reply to an answer. */
function verdict({ answer, tolerance, known, reason }, typed) {
  const given = answersIn(typed, answer);
  const is = (wanted) => given.some((each) => equal(each, wanted, tolerance));
  if (is(answer)) return "Right.";
  if (!given.length) {
    if (Array.isArray(answer)) return `Write ${answer.length} numbers, such as 1, 0.5, …`;
    return "Write a number, such as 3/4, 0.75, 2^-24 or 0x7E.";
  }
  return `Not yet. ${known.find(([wrong]) => is(wrong))?.[1] ?? reason}`;
}

for (const exercise of document.querySelectorAll(".practice:has(script)")) {
  const facts = JSON.parse(exercise.querySelector("script").textContent);
  const field = element("input", { autocomplete: "off", spellcheck: false, inputMode: "text" });
  const label = element("label", {}, element("code", {}, `${facts.name} =`), field);
  const said = element("p", { className: "verdict" });
  said.setAttribute("role", "status");
  const form = element("form", {}, label, element("button", {}, "Check"), said);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    said.textContent = verdict(facts, field.value);
    said.classList.toggle("right", said.textContent === "Right.");
  });
  exercise.prepend(form);
}

// Numbers in a sentence that are dragged, or moved with the arrow keys ------------------------------

/** A number as a sentence has it. */
const inText = (x) => (x < 0.1 ? `2${raised(Math.log2(x))}` : x.toLocaleString("en"));

for (const sentence of document.querySelectorAll("p:has(.drag)")) {
  const drags = [...sentence.querySelectorAll(".drag")];
  const held = Object.fromEntries(drags.map(({ dataset }) => [dataset.name, Number(dataset.at)]));
  const move = ({ name, from, to }, wanted) => {
    held[name] = Math.min(Math.max(wanted, from), to);
    for (const shown of sentence.querySelectorAll("[data-is]")) {
      const formula = shown.dataset.is.replace(/[a-z]/g, (each) => `(${held[each]})`);
      shown.textContent = inText(computed(plainly(formula)));
    }
    for (const drag of drags) {
      drag.ariaValueNow = held[drag.dataset.name];
      drag.ariaValueText = `${drag.textContent}: ${sentence.querySelector(".said").textContent}`;
    }
  };
  for (const drag of drags) {
    const { name, label, from, to } = drag.dataset;
    const facts = { role: "slider", tabIndex: 0, ariaLabel: label };
    Object.assign(drag, facts, { ariaValueMin: from, ariaValueMax: to });
    drag.addEventListener("keydown", (event) => {
      const way = { ArrowUp: 1, ArrowRight: 1, ArrowDown: -1, ArrowLeft: -1 }[event.key];
      if (!way) return;
      event.preventDefault(); // the page does not scroll
      move(drag.dataset, held[name] + way);
    });
    drag.addEventListener("pointerdown", ({ pointerId, clientX }) => {
      const begun = held[name] - clientX / 12; // pixels from number to number
      drag.setPointerCapture(pointerId);
      drag.onpointermove = (event) =>
        event.buttons && move(drag.dataset, Math.round(begun + event.clientX / 12));
    });
    move(drag.dataset, held[name]);
  }
}

// The frame -------------------------------------------------------------------------------------

/** Open the folds around a place, and go there. */
function reveal(there) {
  for (let fold = there.closest("details"); fold; fold = fold.parentElement.closest("details")) {
    fold.open = true;
  }
  there.scrollIntoView();
}

/** What the address names after #, whatever stands there. */
const fragment = () => new URLSearchParams(`at=${location.hash.slice(1)}`).get("at");

function arrive() {
  const there = document.getElementById(fragment().split("?")[0]);
  if (there) reveal(there);
}

addEventListener("addressed", (event) => {
  if (fresh) reveal(event.target); // an explorer, by a link to one of its states
});

// After Back or a reload, answers that were open are open again, so that the place is the same.
for (const i of history.state?.open ?? []) if (answers[i]) answers[i].open = true;
if (fresh) arrive();
addEventListener("hashchange", arrive);
for (const answer of answers) {
  answer.addEventListener("toggle", () => {
    const open = [...answers.keys()].filter((i) => answers[i].open);
    history.replaceState({ open }, "");
  });
}

for (const code of navigator.clipboard ? document.querySelectorAll(".highlight") : []) {
  const copy = element("button", { type: "button", className: "copy" }, "copy");
  copy.addEventListener("click", async () => {
    await navigator.clipboard.writeText(code.querySelector("pre").textContent.trimEnd());
    copy.textContent = "copied";
  });
  code.append(copy);
}

for (const cell of document.querySelectorAll(".text td")) // on a phone it says its column
  cell.dataset.column = cell.closest("table").rows[0].cells[cell.cellIndex].textContent;

// The Tab key stops only at boxes that scroll.
const sizes = new ResizeObserver((boxes) => {
  for (const { target: box } of boxes) {
    const scrolls = box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight;
    box.tabIndex = scrolls ? 0 : -1;
  }
});
for (const box of document.querySelectorAll(".scrolled, pre")) sizes.observe(box);

// The search page holds all sections; those that share most with the question come first.
const EMPTY = /^(an?|and|are|can|did|do|does|for|from|how|i|in|is|it|my|of|on|or|than|the|this|to|what|which|why|with)$/;
const ALIKE = ["stall stuck stop flat plateau stagnat", "fall drop shrink collaps halv", "subnormal denormal",
  "nan inf infinit overflow diverg", "lost lose vanish underflow flush", "fp16 float16", "bf16 bfloat16",
  "largest biggest highest maximum"].map((line) => line.split(" "));

/** A word as a pattern: it begins words, its digits may be raised, and a number is whole. */
function pattern(word) {
  const literal = word.replace(/[.*+?${}()|[\]\\]/g, "\\$&");
  const either = literal.replace(/[-\d]/g, (c) => `[${c}${"⁰¹²³⁴⁵⁶⁷⁸⁹"[c] ?? "−⁻"}]`);
  return /^\d/.test(word) ? `(?<![\\d⁰-⁹])${either}(?![\\d⁰-⁹])` : `(?<![a-z\\d])${either}`;
}

/** A pattern for a word that is written almost so. */
const almost = (word) => /^[a-z]{6,20}$/.test(word) && [...word.slice(1)]
  .map((_, i) => `(?<![a-z])${word.slice(0, i + 1)}[a-z]{0,3}${word.slice(i + 3)}`).join("|");

/** For each word of a question that says something a pattern, also of words that mean the same. */
function patterns(question, entries) {
  const words = plainly(question.toLowerCase()).replace(/[?!,"^]/g, "").split(/\s+/).filter((word) => /[\w\u0080-\uffff]/.test(word));
  const telling = words.filter((word) => !EMPTY.test(word));
  return (telling.length ? telling : words).map((word) => {
    const stem = word.length > 4 ? word.replace(/(e|ing|ed|e?s)$/, "") : word;
    const ending = stem === word ? "" : "(?:er?|ing|ed|e?s)?(?![a-z])";
    const exact = ALIKE.find((line) => line.includes(stem))?.map(pattern).join("|") ?? pattern(stem) + ending;
    const known = entries.some(({ name, all }) => new RegExp(exact, "i").test(`${name} ${all}`));
    return (!known && almost(stem)) || exact;
  });
}

const field = document.getElementById("search");
if (field) {
  const list = document.querySelector(".found");
  const entries = [...list.children].map((item) => {
    const [title, text] = item.children;
    return { item, title, text, name: title.textContent, all: text.textContent };
  });
  const look = () => {
    const asked = patterns(field.value, entries);
    for (const each of entries) Object.assign(each, { covered: 0, score: 0 }).item.hidden = true;
    for (const words of asked.map((source) => new RegExp(source, "i"))) {
      const holding = entries.filter(({ name, all }) => words.test(`${name} ${all}`));
      const rare = Math.log(2 + entries.length / holding.length);
      for (const each of holding) {
        each.covered += rare;
        each.score += rare * (words.test(each.name) ? 2 : 1);
      }
    }
    const least = Math.max(...entries.map(({ covered }) => covered)) / 2;
    const hits = entries.filter(({ covered }) => !asked.length || covered > least);
    const any = new RegExp(asked.length ? `(${asked.join("|")})` : "(?!)", "i");
    const marked = (words) =>
      words.split(any).map((part, i) => (i % 2 ? element("mark", {}, part) : part));
    for (const { item, title, text, name, all } of hits.toSorted((a, b) => b.score - a.score)) {
      const at = Math.max(0, all.search(any) - 60);
      title.replaceChildren(...marked(name));
      text.replaceChildren(...marked((at ? "… " : "") + all.slice(at, at + 200)));
      item.hidden = false;
      list.append(item);
    }
    document.getElementById("found").textContent = asked.length ? `${hits.length} sections` : "";
  };
  field.addEventListener("input", () => {
    history.replaceState(history.state, "", `#${encodeURIComponent(field.value)}`); // Back finds it
    look();
  });
  field.value = fragment();
  document.getElementById("asked").hidden = false;
  field.focus();
  look();
}
