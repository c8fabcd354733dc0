// How people write numbers: one spelling for the fields of explorers and of practice.

/** A number in plain signs: raised digits are powers, ½ is 1/2, digits have no gaps. */
export const plainly = (typed) =>
  typed
    .replace(/[⁻⁺⁰¹²³⁴⁵⁶⁷⁸⁹]+/g, (word) => `^${word.normalize("NFKC")}`)
    .replace(/(\d)\s*(?=[¼-¾⅐-⅞])/g, "$1+")
    .normalize("NFKC")
    .replace(/\*\*/g, "^")
    .replace(/[·×]/g, "*")
    .replace(/[−–]/g, "-")
    .replace(/⁄/g, "/")
    .replace(/(\d)[\s_'](?=\d{3}(?!\d))/g, "$1");

/** An integer in raised digits. */
export const raised = (k) => String(k).replace(/./g, (c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c]));
