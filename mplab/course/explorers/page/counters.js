// Which sum of ones stops, and where? Five formats add 1 again and again, in one of three ways.

import { makeFormat, round, STOCHASTIC, stream } from "./numbers.js";

const END = 2 ** 25; // additions
const OCTAVE = 500; // milliseconds in which the count doubles
const BUDGET = 5; // milliseconds of computing in a frame
const PORTION = 8192; // additions between two looks at the clock

/** One sum that 1 is added to: "nearest", "kahan" or "stochastic". */
export class Counter {
  sum = 0;
  before = 0; // the sum before the last addition
  n = 0;
  stopped = false;
  lost = 0; // what Kahan's sum carries

  constructor(f, way, seed = "1") {
    Object.assign(this, { f, way, random: stream(seed) });
  }

  /** Add 1 until there were n additions, or nothing changes any more. */
  runTo(n) {
    const exact = Math.min(2 ** this.f.precision, this.f.maxFinite, n); // up to here no rounding
    if (this.sum < exact) {
      this.sum = exact;
      this.before = exact - 1;
      this.n = exact;
    }
    for (; this.n < n && !this.stopped; this.n += 1) this.#add();
    if (this.stopped) this.n = n;
  }

  #add() {
    const r = (x) => round(x, this.f).value;
    const [before, lost] = [this.sum, this.lost];
    this.before = before;
    if (this.way === "kahan") {
      const y = r(1 - lost);
      this.sum = r(before + y);
      this.lost = r(r(this.sum - before) - y);
    } else if (this.way === "stochastic") {
      this.sum = round(before + 1, this.f, STOCHASTIC, false, this.random(this.n)).value;
    } else this.sum = r(before + 1);
    const same = this.sum === before && this.lost === lost;
    this.stopped = !Number.isFinite(this.sum) || (same && this.way !== "stochastic");
  }
}

const inWords = (x) => {
  if (Number.isFinite(x)) return x.toLocaleString("en");
  return Number.isNaN(x) ? "NaN" : "∞";
};

/** What one row says: its last addition, of numbers that the format has. */
export const equation = ({ before, sum }) => `${inWords(before)} + 1 = ${inWords(sum)}`;

/** The sentence under the race, about the row that stopped last. */
export function raceSentence(counters) {
  const ended = counters.filter(({ stopped }) => stopped);
  if (!ended.length) return "Each row adds 1, again and again, and rounds to its format.";
  const { f, way, sum } = ended.reduce((a, b) => (b.order > a.order ? b : a));
  if (!Number.isFinite(sum)) {
    return `${f.name} ran off its end, ${inWords(f.maxFinite)}: the sum is ${inWords(sum)}.`;
  }
  const wall = `${f.name} has stopped at ${inWords(sum)}`;
  if (way === "kahan") return `${wall}, the square of where it stops alone.`;
  return `${wall}: ${inWords(sum + 1)} is no ${f.name} number, and the tie goes back. No error is raised.`;
}

/** Bring a race to life: its rows stand in the page already, as they end. */
function race(root) {
  const rows = [...root.querySelectorAll("[data-format]")];
  const formats = JSON.parse(root.querySelector("script").textContent).map(makeFormat);
  const [button, said] = ["button", ".sentence"].map((each) => root.querySelector(each));
  const ways = [...root.querySelectorAll("input")];
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  let counters;
  let order;
  let n;
  let running = false;
  let begun;

  const show = () => {
    for (const [i, row] of rows.entries()) {
      const c = counters[i];
      const size = Number.isFinite(c.sum) ? Math.max(c.sum, 1) : c.f.maxFinite;
      row.style.setProperty("--log", Math.log2(size));
      row.classList.toggle("stopped", c.stopped);
      row.querySelector("strong").textContent = equation(c);
    }
    const now = raceSentence(counters);
    if (said.textContent !== now) said.textContent = now;
    button.textContent = running ? "Pause" : n < END ? "Go on" : "Again";
  };
  const advance = (to, until = Number.POSITIVE_INFINITY) => {
    while (n < to && performance.now() < until) {
      n = Math.min(to, n + PORTION); // all rows side by side
      for (const c of counters) {
        const was = c.stopped;
        c.runTo(n);
        if (c.stopped && !was) c.order = order++;
      }
    }
    if (n >= END) running = false;
  };
  const resume = () => {
    begun = performance.now() - Math.log2(Math.max(n, 1)) * OCTAVE;
  };
  const tick = (now) => {
    if (!running) return;
    const wanted = Math.min(END, Math.floor(2 ** ((now - begun) / OCTAVE)));
    advance(wanted, performance.now() + BUDGET);
    if (n < wanted) resume(); // the clock waits for the sums
    show();
    requestAnimationFrame(tick);
  };
  const go = () => {
    running = true;
    resume();
    requestAnimationFrame(tick);
  };
  const chosen = () => ways.find(({ checked }) => checked).value;
  const finish = () => {
    advance(chosen() === "nearest" ? END : 2 ** 17);
    [n, running] = [END, false];
    show();
  };
  const restart = () => {
    counters = formats.map((f) => new Counter(f, chosen()));
    [n, order] = [0, 0];
    if (still.matches) finish();
    else if (running) resume();
    else go();
  };
  button.addEventListener("click", () => {
    said.setAttribute("role", "status"); // silent until somebody asks
    if (running) running = false;
    else if (n < END) go();
    else restart();
    show();
  });
  for (const way of ways) {
    way.addEventListener("change", () => {
      said.setAttribute("role", "status");
      history.replaceState(history.state, "", `#race?${way.value}`);
      restart();
    });
    if (location.hash === `#race?${way.value}`) way.checked = true;
  }
  root.querySelector(".controls").hidden = false;
  addEventListener("beforeprint", finish); // on paper a race stands at its end
  restart();
}

for (const root of globalThis.document?.querySelectorAll(".race") ?? []) race(root);
