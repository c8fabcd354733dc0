// Formats, codes, and the one door into a format, as in mplab.numbers: each result equals the
// library's bit for bit, which tests/explorers/test_page_numbers.py holds.
//
// A value is a double. An exact number is {negative, n, d}: the fraction n/d of two BigInts, d = 0
// for infinity (n = 1) and NaN (n = 0). What cannot be read is thrown, as a RangeError in a sentence.

export const MODES = [
  "TIES_TO_EVEN",
  "TIES_TO_AWAY",
  "TOWARD_ZERO",
  "TOWARD_POSITIVE",
  "TOWARD_NEGATIVE",
  "STOCHASTIC",
  "TO_ODD",
];
export const [EVEN, AWAY, ZERO, POSITIVE, NEGATIVE, STOCHASTIC, ODD] = MODES.keys();

/** The modes that lessons know. */
export const LESSON_MODES = MODES.slice(0, ODD);

export const EVENTS = { INEXACT: 1, UNDERFLOW: 2, OVERFLOW: 4, INVALID: 8 };

// Doubles ---------------------------------------------------------------------------------

const POWERS = new Float64Array(2098); // 2^-1074 .. 2^1023
POWERS.forEach((_, i) => {
  POWERS[i] = i ? 2 * POWERS[i - 1] : Number.MIN_VALUE;
});
const view = new DataView(new ArrayBuffer(8));

/** 2^e, a double. */
export const power = (e) => POWERS[e + 1074];

/** Whether a double has a minus sign; -0 has. */
export const isNegative = (x) => x < 0 || Object.is(x, -0);

/** The bits of a double, as a BigInt. */
export function bitsOf(x) {
  view.setFloat64(0, x);
  return view.getBigUint64(0);
}

/** The double that has these bits, of 64. */
export function ofBits(bits) {
  view.setBigUint64(0, bits);
  return view.getFloat64(0);
}

/** The e with 2^e <= a < 2^(e+1) of a normal double; -1023 below, 1024 for infinity. */
function exponentOf(a) {
  view.setFloat64(0, a);
  return ((view.getUint32(0) >>> 20) & 2047) - 1023;
}

// Formats ---------------------------------------------------------------------------------

const RESERVED = { IEEE: (hidden) => hidden, NAN_ALL_ONES: () => 1, P3109: () => 1 };
const ONE_ZERO = ["NAN_NEGATIVE_ZERO", "P3109", "TWOS_COMPLEMENT"];

/** A format with all that follows from its facts, which have the names of mplab.Format's. */
export function makeFormat(facts) {
  const { exponent_bits, precision, bias, specials, signed, has_zero } = facts;
  const hidden = 2 ** (precision - 1);
  const top = 2 ** exponent_bits * hidden;
  const maxCode = top - 1 - (RESERVED[specials]?.(hidden) ?? 0);
  const signCode = signed ? top : 0;
  const nanCodes = {
    IEEE: maxCode + 1 + Math.floor(hidden / 2),
    NAN_ALL_ONES: maxCode + 1,
    NAN_NEGATIVE_ZERO: signCode,
    P3109: signCode,
  };
  const emin = Number(has_zero) - bias;
  const emax = Math.floor(maxCode / hidden) - bias;
  return {
    ...facts,
    hidden,
    maxCode,
    signCode,
    emin,
    emax,
    bits: Number(signed) + exponent_bits + precision - 1,
    infinityCode: ["IEEE", "P3109"].includes(specials) ? maxCode + 1 : null,
    nanCode: nanCodes[specials] ?? null,
    hasNegativeZero: signed && has_zero && !ONE_ZERO.includes(specials),
    maxFinite: (hidden + (maxCode % hidden)) * power(emax - precision + 1),
    minNormal: power(emin),
  };
}

const OWN = /^e([0-9]{1,2})m([0-9]{1,2})(?:[ _](ieee|nan_all_ones|nan_negative_zero|p3109|none))?$/;

/** The signed format that is described as E5M6, or E5M6_NONE with the name of its specials. */
export function ownFormat(words) {
  const found = OWN.exec(words.trim().toLowerCase());
  if (!found) {
    throw new RangeError(
      `There is no format ${quoted(words)}. Choose one, or describe it as E5M6.`,
    );
  }
  const [exponent_bits, trailing] = [Number(found[1]), Number(found[2])];
  const bias = 2 ** (exponent_bits - 1) - 1;
  const specials = (found[3] ?? "ieee").toUpperCase();
  const name = `E${exponent_bits}M${trailing}${found[3] ? `_${specials}` : ""}`;
  const made = {
    exponent_bits,
    precision: trailing + 1,
    bias,
    specials,
    signed: true,
    has_zero: true,
  };
  const possible =
    exponent_bits && exponent_bits + trailing <= 31 && (trailing || specials !== "IEEE");
  const f = possible ? makeFormat({ ...made, name, colour: "#000000" }) : { emax: 1024 };
  // normal numbers at least one, all of them normal doubles
  if (f.maxCode < f.hidden || f.emax > 1023 || (f.emin - trailing < -1022 && f.emin !== -1022)) {
    throw new RangeError(
      `${name} cannot be: a format has 2 to 32 bits, normal numbers, and embeds in double.`,
    );
  }
  return f;
}

/** The format of a name, in letters of either size, or one described as E5M6. */
export const formatNamed = (name, formats) =>
  formats.find((f) => f.name.toLowerCase() === name.trim().toLowerCase()) ?? ownFormat(name);

/** Formats with one more, unless it is among them. */
export const including = (formats, f) =>
  formats.some(({ name }) => name === f.name) ? formats : [...formats, f];

// Rounding --------------------------------------------------------------------------------

/** The number of a mode by its name. */
export function modeNamed(name) {
  const mode = MODES.indexOf(name.trim().toUpperCase());
  if (mode < 0) {
    throw new RangeError(`There is no rounding mode ${quoted(name)}. Choose one of the list.`);
  }
  return mode;
}

/** A magnitude to a multiple of a power of two: up or down, as the mode says. */
function toMultiple(a, step, mode, away, random) {
  const quotient = a / step;
  const whole = Math.floor(quotient); // odd at one bit of precision, as the definition has it
  const down = whole * step;
  if (down === a) return a;
  const rest = quotient - whole;
  let up = away;
  if (mode === EVEN) up = rest > 0.5 || (rest === 0.5 && whole % 2 === 1);
  else if (mode === AWAY) up = rest >= 0.5;
  else if (mode === STOCHASTIC) up = Math.floor(rest * 2 ** 32) + random >= 2 ** 32;
  else if (mode === ODD) up = whole % 2 === 0;
  return up ? down + step : down;
}

/** What lies past the largest finite value. */
function beyond(f, saturate) {
  if (saturate || f.nanCode === null) return f.maxFinite;
  return f.infinityCode === null ? Number.NaN : Number.POSITIVE_INFINITY;
}

/**
 * Round a double to a value of a format: mplab.round_to and mplab.events, without flushing.
 *
 * JavaScript has one NaN, a quiet one. `mode` is an index of MODES, `random` 32 bits.
 */
export function round(x, f, mode = EVEN, saturate = false, random = 0) {
  const a = Math.abs(x);
  const negative = isNegative(x);
  if (Number.isNaN(x)) return { value: x, events: 0 };
  if (negative && a > 0 && !f.signed) {
    return { value: Number.NaN, events: EVENTS.INEXACT | EVENTS.INVALID };
  }
  const finite = a !== Number.POSITIVE_INFINITY;
  const away = mode === (negative ? NEGATIVE : POSITIVE);
  const lowest = f.emin - f.precision + 1;
  const step = finite ? power(Math.max(exponentOf(a) - f.precision + 1, lowest)) : 1;
  let r = finite ? toMultiple(a, step, mode, away, random) : a;
  let events = 0;
  if (r > f.maxFinite) {
    const inward = mode >= ZERO && mode !== STOCHASTIC && !away;
    r = inward && finite ? f.maxFinite : beyond(f, saturate);
    if (finite) events |= EVENTS.OVERFLOW;
    else if (Number.isNaN(r)) events |= EVENTS.INVALID;
  }
  if (!f.has_zero && r < f.minNormal) r = f.minNormal;
  if (r !== a) {
    events |= EVENTS.INEXACT;
    // with an exponent unbounded below, the binade under minNormal has half its grid
    const tiny = a < f.minNormal && toMultiple(a, power(lowest - 1), mode, away, random);
    if (tiny !== false && tiny < f.minNormal) events |= EVENTS.UNDERFLOW;
  }
  const minus = negative && (r === 0 ? f.hasNegativeZero : f.signed);
  return { value: minus ? -r : r, events };
}

const MASK64 = (1n << 64n) - 1n;

function mix64(z) {
  let h = (z + 0x9e3779b97f4a7c15n) & MASK64;
  h = ((h ^ (h >> 30n)) * 0xbf58476d1ce4e5b9n) & MASK64;
  h = ((h ^ (h >> 27n)) * 0x94d049bb133111ebn) & MASK64;
  return h ^ (h >> 31n);
}

/** The bits of one call of mplab.Stream: a function from index (below 2^32) to 32 of them. */
export function stream(seed, call = 0, bits = 32) {
  const key = mix64(mix64(BigInt(seed) + mix64(BigInt(call))));
  const key0 = Number(key & 0xffffffffn);
  const key1 = Number(key >> 32n);
  const kept = bits === 32 ? -1 : ~(2 ** (32 - bits) - 1);
  return (index) => {
    let h = index ^ key0;
    h = Math.imul(h ^ (h >>> 16), 0x21f0aaad);
    h ^= (h >>> 15) ^ key1;
    h = Math.imul(h, 0xd35a2d97);
    h = Math.imul(h ^ (h >>> 15), 0x31848bab);
    h ^= h >>> 14;
    return (h & kept) >>> 0;
  };
}

// Codes -----------------------------------------------------------------------------------

/** Whether a code is of a negative number, and the code of its magnitude. */
function split(code, f) {
  const negative = f.signed && code >= f.signCode;
  if (!negative) return [false, code];
  return [true, f.specials === "TWOS_COMPLEMENT" ? 2 * f.signCode - code : code - f.signCode];
}

/** The value of a code. */
export function decode(code, f) {
  const [negative, magnitude] = split(code, f);
  if (code === f.nanCode) return Number.NaN;
  if (magnitude > f.maxCode && f.specials !== "TWOS_COMPLEMENT") {
    if (magnitude !== f.infinityCode) return Number.NaN;
    return negative ? Number.NEGATIVE_INFINITY : Number.POSITIVE_INFINITY;
  }
  const biased = Math.floor(magnitude / f.hidden);
  const subnormal = biased === 0 && f.has_zero;
  const significand = (magnitude % f.hidden) + (subnormal ? 0 : f.hidden);
  const value = significand * power((subnormal ? f.emin : biased - f.bias) - f.precision + 1);
  return negative ? -value : value;
}

/** The least finite value that numbers round to. */
export const leastOf = (f) => (f.signed ? -f.maxFinite : decode(0, f));

/** The code of a value of the format; null for what is none. */
export function encode(x, f) {
  if (Number.isNaN(x)) return f.nanCode;
  const negative = isNegative(x);
  const magnitude = magnitudeCode(Math.abs(x), f);
  if (magnitude === null || (negative && !f.signed)) return null;
  if (negative && magnitude === 0 && !f.hasNegativeZero && f.has_zero) return null;
  if (!negative) return magnitude;
  return f.specials === "TWOS_COMPLEMENT" ? 2 * f.signCode - magnitude : f.signCode + magnitude;
}

function magnitudeCode(a, f) {
  if (a === Number.POSITIVE_INFINITY) return f.infinityCode;
  const e = Math.max(exponentOf(a), f.emin);
  const step = power(e - f.precision + 1);
  const significand = Math.floor(a / step);
  const normal = significand >= f.hidden;
  if (significand * step !== a || (!normal && !f.has_zero)) return null;
  const code = normal ? (e + f.bias - 1) * f.hidden + significand : significand;
  return code <= f.maxCode ? code : null;
}

/** The value after (`direction` 1) or before (-1) a value: mplab.next_up and next_down. */
export function next(x, f, direction) {
  const negative = isNegative(x);
  const magnitude = Number.isNaN(x) ? null : magnitudeCode(Math.abs(x), f);
  if (magnitude === null || (negative && encode(x, f) === null)) return Number.NaN;
  const rank = (negative ? -magnitude : magnitude) + direction;
  const top = f.maxCode + (f.infinityCode === null ? 0 : 1);
  const past = Math.abs(rank) > top && f.infinityCode === null;
  if (f.nanCode !== null && (past || (rank < 0 && !f.signed))) return Number.NaN;
  if (!f.signed) return decode(Math.min(Math.max(rank, 0), top), f);
  const value = decode(Math.min(Math.abs(rank), top), f);
  const minus = rank < 0 || (rank === 0 && direction > 0 && f.hasNegativeZero);
  return minus ? -value : value;
}

/** The unit in the last place that the format has at a number: mplab.ulp. */
export function ulp(x, f) {
  if (!Number.isFinite(x)) return Math.abs(x);
  const exponent = exponentOf(Math.abs(x));
  return power(Math.min(Math.max(exponent, f.emin), f.emax) - f.precision + 1);
}

/** What a value is: zero, subnormal, normal, infinity or NaN. */
export function kindOf(x, f) {
  if (!Number.isFinite(x)) return Number.isNaN(x) ? "NaN" : "infinity";
  if (x === 0) return "zero";
  return Math.abs(x) < f.minNormal ? "subnormal" : "normal";
}

// Exact numbers ---------------------------------------------------------------------------

const bitLength = (n) => (n ? n.toString(2).length : 0);

/** A double as an exact number. */
export function exact(x) {
  const negative = isNegative(x);
  if (!Number.isFinite(x)) return { negative, n: Number.isNaN(x) ? 0n : 1n, d: 0n };
  const bits = bitsOf(Math.abs(x));
  const field = bits >> 52n;
  const n = field ? (bits & ((1n << 52n) - 1n)) | (1n << 52n) : bits;
  const e = (field || 1n) - 1075n;
  if (e >= 0n) return { negative, n: n << e, d: 1n };
  let shift = -e;
  let odd = n;
  for (; odd && shift && !(odd & 1n); shift -= 1n) odd >>= 1n;
  return { negative, n: odd, d: odd ? 1n << shift : 1n };
}

/**
 * A double of an exact number: the nearest, ties to even; or rounded to odd, from which rounding
 * into any format of 51 bits or less is as if from the exact number (Boldo and Melquiond 2008).
 */
export function double({ negative, n, d }, odd = false) {
  const sign = negative ? -1 : 1;
  if (d === 0n) return n ? sign * Number.POSITIVE_INFINITY : Number.NaN;
  if (n === 0n) return sign * 0;
  const about = bitLength(n) - bitLength(d);
  const [high, low] = about < 0 ? [n << BigInt(-about), d] : [n, d << BigInt(about)];
  const e = high < low ? about - 1 : about;
  if (e > 1023) return sign * (odd ? Number.MAX_VALUE : Number.POSITIVE_INFINITY);
  const last = Math.max(e - 52, -1074);
  const over = last < 0 ? n << BigInt(-last) : n;
  const under = last > 0 ? d << BigInt(last) : d;
  const whole = over / under;
  const rest = over % under;
  const tie = 2n * rest === under;
  const isOdd = (whole & 1n) === 1n;
  const up = odd ? rest > 0n && !isOdd : 2n * rest > under || (tie && isOdd);
  return sign * Number(up ? whole + 1n : whole) * power(last);
}

/** An exact number in at most 17 digits, with an ellipsis where there are more. */
export function shown({ negative, n, d }) {
  const sign = negative ? "−" : "";
  if (d === 0n) return n ? `${sign}infinity` : "NaN";
  if (n === 0n) return `${sign}0`;
  let e = n.toString().length - d.toString().length;
  const scaled = (by) => (by < 0 ? [n, d * 10n ** BigInt(-by)] : [n * 10n ** BigInt(by), d]);
  const [high, low] = scaled(-e);
  if (high < low) e -= 1;
  const [over, under] = scaled(16 - e);
  const rest = over % under;
  let whole = over / under;
  if (2n * rest > under || (2n * rest === under && whole & 1n)) whole += 1n;
  if (whole === 10n ** 17n) e += 1;
  const digits = whole.toString().replace(/0+$/, "");
  const mark = rest ? "…" : "";
  if (e < -6 || e > 16) {
    const point = digits.length > 1 ? "." : "";
    return `${sign}${digits[0]}${point}${digits.slice(1)}e${e < 0 ? "−" : "+"}${Math.abs(e)}${mark}`;
  }
  return `${sign}${placed(digits.padEnd(e + 1, "0"), e + 1)}${mark}`;
}

/** A double in a few digits, for pictures. */
export function brief(x, digits = 6) {
  if (!Number.isFinite(x) || x === 0) return shown(exact(x));
  const rounded = Number(x.toPrecision(digits));
  const size = Math.abs(rounded);
  const near = size >= 1e-4 && size < 10 ** digits;
  const words = near ? `${rounded}` : x.toExponential(digits - 1).replace(/\.?0+e/, "e");
  return words.replaceAll("-", "−");
}

/** Digits with the decimal point after the first `before`, which may be none. */
function placed(digits, before) {
  if (before <= 0) return `0.${"0".repeat(-before)}${digits}`;
  const part = digits.slice(before);
  return digits.slice(0, before) + (part && `.${part}`);
}

/** All digits of an exact number whose denominator is a power of two. */
export function inFull({ negative, n, d }) {
  if (d === 0n || n === 0n) return shown({ negative, n, d });
  const places = bitLength(d) - 1;
  const digits = (n * 5n ** BigInt(places)).toString();
  return (negative ? "−" : "") + placed(digits, digits.length - places);
}

/** A code with as many digits as its format needs. */
export const inHex = (code, f) =>
  `0x${code
    .toString(16)
    .toUpperCase()
    .padStart(Math.ceil(f.bits / 4), "0")}`;

/** A double in hexadecimal, as C's %a writes it. */
export function hexadecimal(x) {
  if (!Number.isFinite(x)) return shown(exact(x));
  const bits = bitsOf(Math.abs(x));
  const field = Number(bits >> 52n);
  const digits = (bits & ((1n << 52n) - 1n)).toString(16).padStart(13, "0").replace(/0+$/, "");
  const exponent = x === 0 ? 0 : Math.max(field, 1) - 1023;
  const words = `0x${field ? 1 : 0}${digits && `.${digits}`}p${exponent < 0 ? "" : "+"}${exponent}`;
  return (isNegative(x) ? "-" : "") + words;
}

// What is typed ---------------------------------------------------------------------------

const FURTHEST = 5000; // exponents of 2, and of 10: past all formats, and quick to compute
const LONGEST = 20000; // characters that are read
const PRODUCT = /^([+-]?)(?:([0-9.]+)\s*[*·×]\s*)?2\s*(?:\^|\*\*)\s*([+-]?[0-9]{1,4})$/;
const HEX_FLOAT = /^([+-]?)0x([0-9a-f]*)(?:\.([0-9a-f]*))?(?:p([+-]?[0-9]{1,9}))?$/;
const DECIMAL = /^([+-]?)(?=\.?[0-9])([0-9]*)\.?([0-9]*)(?:e([+-]?[0-9]+))?$/;
const SPECIAL = /^([+-]?)(?:(inf|infinity)|nan)$/;

/** What was typed, as a message repeats it. */
export const quoted = (typed) => (typed.length <= 30 ? `“${typed}”` : `“${typed.slice(0, 30)}…”`);

const mistake = (typed) =>
  new RangeError(
    `${quoted(typed)} cannot be read. Type a number such as 0.1, 1e-8, 1/3, 3*2^-4, 0x1.8p3, ` +
      `inf or nan, or a code such as 0x2E66.${typed.includes(",") ? " Write a point, no comma." : ""}`,
  );

const tooFar = (typed) =>
  new RangeError(
    `${quoted(typed)} is too far from 1. Type an exponent of 5,000 or less, with either sign.`,
  );

/** The integer that was typed, or given, from `least` to `most`. */
export function wholeNumber(what, typed, least, most) {
  const number = Number(typed);
  if (!Number.isInteger(number) || number < least || number > most || String(typed).trim() === "") {
    const ends = `from ${brief(least)} to ${brief(most)}`;
    throw new RangeError(`${what} must be a whole number ${ends}; got ${quoted(String(typed))}.`);
  }
  return number;
}

/** Whether what was typed is a code: 0x… or 0b… without a point and without an exponent. */
export const isCode = (typed) => /^\s*0[xb][^.p]*$/i.test(typed);

/** The code that was typed, if the format has it. */
export function readCode(words, f, typed = words) {
  const digits = words.trim().toLowerCase();
  if (!/^(0x[0-9a-f]+|0b[01]+)$/.test(digits)) throw mistake(typed);
  if (BigInt(digits) >> BigInt(f.bits)) {
    const code = digits.length <= 30 ? digits : `${digits.slice(0, 30)}…`;
    throw new RangeError(`${code} needs more than the ${f.bits} bits of ${f.name}.`);
  }
  return Number(digits);
}

/** The exact number that was typed: a code of the format, or a number in one of many ways. */
export function read(typed, f) {
  const words = typed
    .trim()
    .replaceAll("−", "-")
    .toLowerCase()
    .replace(/(?<=\d)_(?=\d)/g, "");
  if (words.length > LONGEST) {
    throw new RangeError(
      `${quoted(typed)} is too long: ${typed.length} characters. Type at most ${LONGEST}.`,
    );
  }
  if (isCode(words)) return exact(decode(readCode(words, f, typed), f));
  const hex = HEX_FLOAT.exec(words);
  if (hex) return readHexadecimal(hex, typed);
  const product = PRODUCT.exec(words);
  if (product) {
    const [, sign, factor, exponent] = product;
    return times(readDecimal(`${sign}${factor ?? 1}`, typed), Number(exponent), typed);
  }
  const [above, below, ...more] = words.split("/");
  const number = readDecimal(above.trim(), typed);
  if (below === undefined) return number;
  const divisor = readDecimal(below.trim(), typed);
  if (more.length || !divisor.n || !divisor.d || !number.d) throw mistake(typed);
  const negative = number.negative !== divisor.negative;
  return { negative, n: number.n * divisor.d, d: number.d * divisor.n };
}

/** An exact number times a power of two. */
function times({ negative, n, d }, exponent, typed) {
  if (Math.abs(exponent) > FURTHEST) throw tooFar(typed);
  const by = 1n << BigInt(Math.abs(exponent));
  return exponent < 0 ? { negative, n, d: d * by } : { negative, n: n * by, d };
}

function readHexadecimal([, sign, whole, part = "", exponent = "0"], typed) {
  if (!whole && !part) throw mistake(typed);
  const digits = {
    negative: sign === "-",
    n: BigInt(`0x${whole}${part}`),
    d: 16n ** BigInt(part.length),
  };
  return times(digits, Number(exponent), typed);
}

function readDecimal(words, typed) {
  const special = SPECIAL.exec(words);
  if (special) return { negative: special[1] === "-", n: special[2] ? 1n : 0n, d: 0n };
  const found = DECIMAL.exec(words);
  if (!found) throw mistake(typed);
  const [, sign, whole, part, exponent = "0"] = found;
  const negative = sign === "-";
  const n = BigInt(whole + part);
  if (n === 0n) return { negative, n, d: 1n };
  const e = Number(exponent) - part.length;
  if (Math.abs(n.toString().length - 1 + e) > FURTHEST) throw tooFar(typed);
  const by = 10n ** BigInt(Math.abs(e));
  return e < 0 ? { negative, n, d: by } : { negative, n: n * by, d: 1n };
}

/** The number that was typed, finite and within the range of a format, its own or another. */
export function readWithin(what, typed, f, range = f) {
  const number = read(typed, f);
  const size = double(number);
  const [low, high] = [leastOf(range), range.maxFinite];
  if (!(size >= low && size <= high)) {
    const ends = `from ${brief(low)} to ${brief(high)}, the range of ${range.name}`;
    throw new RangeError(`${what} must be finite and ${ends}; got ${quoted(typed)}.`);
  }
  return number;
}
