// Markdown to safe HTML, block by block: a block that has not changed is neither read nor rendered again.
import { html, useMemo, useRef } from '../vendor/preact.js';
import { Marked, purify } from '../vendor/markdown.js';
import { Code } from './code.js';
import { formulas, katex } from './math.js';

const marked = new Marked({ gfm: true, breaks: true, renderer: { html: ({ text }) => inert(text) }, extensions: formulas });
const CLEAN = { RETURN_TRUSTED_TYPE: true, FORBID_ATTR: ['style', 'class', 'id', 'name'], FORBID_TAGS: ['style', 'form', 'input', 'button', 'video', 'audio'], USE_PROFILES: { html: true, mathMl: true } };

purify.addHook('uponSanitizeElement', (node) => {
  if (node.nodeName === 'IMG' && node.parentNode) node.parentNode.replaceChild(linkInstead(node), node);
});
purify.addHook('afterSanitizeAttributes', (node) => {
  if (node.nodeName !== 'A') return;
  node.setAttribute('target', '_blank');
  node.setAttribute('rel', 'noopener noreferrer');
});

/** A remote image would tell its server what the model wrote into the address, so it is a link that a person may follow. */
function linkInstead(image) {
  const link = image.ownerDocument.createElement('a');
  link.textContent = image.getAttribute('alt') || 'image';
  const source = image.getAttribute('src') ?? '';
  if (/^https?:/i.test(source)) link.setAttribute('href', source);
  return link;
}

/** The sanitizer drops styles and handlers too, but the browser would report each of them to the policy before. */
const inert = (text) => text.replace(/<\/?style[^>]*>/gi, '').replace(/([\s"'/])(style|on\w+)(\s*=)/gi, '$1data-$2$3');

export function Markdown({ text }) {
  const before = useRef(/** @type {Read} */ ({ text: '', blocks: [], isRead: true }));
  const blocks = useMemo(() => {
    before.current = readOn(before.current, text);
    return before.current.blocks;
  }, [text]);
  return blocks.map((block, index) => block.type !== 'space' && (
    block.type === 'code' ? html`<${Code} key=${index} block=${block} />` : html`<${Block} key=${index} raw=${block.raw} />`));
}

function Block({ raw }) {
  const clean = useMemo(() => cleaned(raw), [raw, katex.value]);
  return clean === null ? html`<pre class="block">${raw}</pre>` : html`<div class="block" dangerouslySetInnerHTML=${{ __html: clean }} />`;
}

/** @typedef {{text: string, blocks: import('../vendor/markdown.js').Token[], isRead: boolean}} Read */

/** The blocks of a text, and after `before` those of a longer one: what is behind the last two blocks stays as it was, since
 * only they can still change. A definition of links, which counts in the whole text, has all of it read anew.
 * @param {Read} before @param {string} written @returns {Read} */
export function readOn(before, written) {
  const text = written.replace(/\r\n?/g, '\n');
  const isMore = before.isRead && before.blocks.length > 2 && text.startsWith(before.text) && !/^ {0,3}\[[^\]]+\]:/m.test(text);
  const kept = isMore ? before.blocks.slice(0, -2) : [];
  const begin = kept.reduce((sum, { raw }) => sum + raw.length, 0);
  try {
    return { text, blocks: [...kept, ...joined(marked.lexer(text.slice(begin)))], isRead: true };
  } catch { // what is nested thousands of times deep cannot be read as Markdown: it is shown as it was written
    return { text, blocks: [{ type: 'unread', raw: text }], isRead: false };
  }
}

/** Space between blocks belongs to the block before it, so that the lengths of all blocks add up to that of the text. */
function joined(tokens) {
  const blocks = [];
  for (const token of tokens) {
    const last = blocks.at(-1);
    if (token.type === 'space' && last) blocks[blocks.length - 1] = { ...last, raw: last.raw + token.raw };
    else blocks.push(token);
  }
  return blocks;
}

function cleaned(raw) {
  try {
    return purify.sanitize(marked.parse(raw), CLEAN);
  } catch {
    return null;
  }
}
