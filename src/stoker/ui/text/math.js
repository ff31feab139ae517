// Formulas in Markdown: `$$…$$`, `\[…\]`, `\(…\)` and `$…$`, as MathML. The library is fetched with the first formula.
import { signal } from '../vendor/preact.js';

const LONGEST = 10_000;
const OPTIONS = { output: 'mathml', trust: false, strict: false, maxSize: 50, maxExpand: 1000 };

/** KaTeX; null until a formula has been seen and the library has come. Blocks with formulas are rendered again then. */
export const katex = signal(null);
let isAsked = false;

/** Extensions of marked. A single `$` begins a formula only if no price is meant: `$5 and $6` has none. */
export const formulas = [
  { name: 'displayed', level: 'block', start: (text) => text.match(/\$\$|\\\[/)?.index, tokenizer: (text) => read(text, /^ {0,3}(?:\$\$([^]+?)\$\$|\\\[([^]+?)\\\])\s*(?:\n|$)/, true), renderer: written },
  { name: 'formula', level: 'inline', start: (text) => text.match(/\$|\\[([]/)?.index, tokenizer: (text) => read(text, /^(?:\\\(([^]+?)\\\)|\$(?!\s|\$)((?:\\.|[^\\$\n])+?)(?<!\s)\$(?!\d))/, false)
    ?? read(text, /^(?:\$\$([^$]+?)\$\$|\\\[([^]+?)\\\])/, true), renderer: written },
];

function read(text, rule, isDisplayed) {
  const found = rule.exec(text);
  if (!found || found[0].length > LONGEST) return undefined;
  return { type: isDisplayed && rule.source.includes('{0,3}') ? 'displayed' : 'formula', raw: found[0], tex: (found[1] ?? found[2]).trim(), isDisplayed };
}

function written({ tex, raw, isDisplayed }) {
  if (katex.value === null) {
    if (!isAsked) fetchLibrary();
    return escaped(raw);
  }
  try {
    const formula = katex.value.renderToString(tex, { ...OPTIONS, displayMode: isDisplayed });
    return formula.replace(/<annotation[^]*?<\/annotation>/g, '');
  } catch {
    return `<code>${escaped(raw)}</code>`;
  }
}

function fetchLibrary() {
  isAsked = true;
  import('../vendor/katex.js').then((library) => { katex.value = library.katex; }, () => { isAsked = false; });
}

const escaped = (text) => text.replace(/[&<>"]/g, (sign) => `&#${sign.charCodeAt(0)};`);
