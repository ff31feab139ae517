// Numbers, times and sizes as the language of the page writes them.
export let language = 'en';
let numbers = Intl.NumberFormat('en');

/** @param {string} name a language that the page has words of */
export function setLanguage(name) {
  language = name;
  numbers = Intl.NumberFormat(name);
  document.documentElement.lang = name;
}

/** A whole number. @param {number} value */
export const number = (value) => numbers.format(value);

/** A number with so many decimals. @param {number} value @param {number} [digits] */
export const decimal = (value, digits = 1) => value.toLocaleString(language, { minimumFractionDigits: digits, maximumFractionDigits: digits });

/** A part of a whole in percent; nothing of nothing is 0. @param {number} part @param {number} whole */
export const share = (part, whole) => (whole ? part / whole : 0).toLocaleString(language, { style: 'percent' });

/** @param {number} seconds Unix time */
export const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString(language);

/** Sizes in memory and on disk. @param {number} value */
export const bytes = (value) => (value >= 1e9 ? `${decimal(value / 1e9)} GB` : `${number(Math.round(value / 1e6))} MB`);
