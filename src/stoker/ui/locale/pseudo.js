// No language, but English that is a third longer and has accents: what shows without them is not translated.
import { en } from './en.js';
import { words as more } from './en_engine.js';

const ACCENTS = { a: 'á', e: 'é', i: 'í', o: 'ó', u: 'ú', A: 'Á', E: 'É', I: 'Í', O: 'Ó', U: 'Ú', n: 'ñ', c: 'ç' };

function lengthened(text) {
  const accented = String(text).replace(/[aeiouAEIOUnc]/g, (letter) => ACCENTS[letter]);
  return `⟦${accented}${'~'.repeat(Math.ceil(accented.length / 3))}⟧`;
}

export const words = Object.fromEntries(Object.entries({ ...en, ...more }).map(([key, word]) => [key, typeof word === 'function' ? (...values) => lengthened(word(...values)) : lengthened(word)]));
