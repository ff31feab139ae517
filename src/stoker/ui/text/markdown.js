// Markdown to safe HTML, block by block: a block that has not changed is not rendered again.
import { html, useMemo } from '../vendor/preact.js';
import { Marked, purify } from '../vendor/markdown.js';
import { Code } from './code.js';
import { formulas, katex } from './math.js';

const marked = new Marked({ gfm: true, breaks: true, renderer: { html: ({ text }) => unstyled(text) }, extensions: formulas });
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

/** The sanitizer drops styles too, but the browser would report each of them before. */
const unstyled = (text) => text.replace(/<\/?style[^>]*>/gi, '').replace(/([\s"'/])style(\s*=)/gi, '$1data-style$2');

export function Markdown({ text }) {
  const blocks = useMemo(() => blocksOf(text), [text]);
  return blocks.map((block, index) =>
    block.type === 'code' ? html`<${Code} key=${index} block=${block} />` : html`<${Block} key=${index} raw=${block.raw} />`);
}

function Block({ raw }) {
  const clean = useMemo(() => cleaned(raw), [raw, katex.value]);
  return clean === null ? html`<pre class="block">${raw}</pre>` : html`<div class="block" dangerouslySetInnerHTML=${{ __html: clean }} />`;
}

/** What is nested thousands of times deep cannot be read as Markdown: it is shown as it was written. */
function blocksOf(text) {
  try {
    return marked.lexer(text).filter((token) => token.type !== 'space');
  } catch {
    return [{ type: 'unread', raw: text }];
  }
}

function cleaned(raw) {
  try {
    return purify.sanitize(marked.parse(raw), CLEAN);
  } catch {
    return null;
  }
}
