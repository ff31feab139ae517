// Colors code beside the page, so that a long block delays no typing. It answers with `[class, text]` pairs, never with HTML.
import { hljs } from '../vendor/highlight.js';

const ENTITIES = { '&amp;': '&', '&lt;': '<', '&gt;': '>', '&quot;': '"', '&#x27;': "'" };

addEventListener('message', ({ data: { id, code, language } }) => {
  const known = hljs.getLanguage(language);
  postMessage({ id, parts: known ? partsOf(hljs.highlight(code, { language, ignoreIllegals: true }).value) : null });
});

/** What highlight.js writes: nested spans with a class, and text with five entities. The innermost class counts. */
function partsOf(markup) {
  const parts = [];
  const open = [];
  for (const [piece, name] of markup.matchAll(/<span class="([^"]*)">|<\/span>|[^<]+/g)) {
    if (name !== undefined) open.push(name.split(' ')[0]);
    else if (piece === '</span>') open.pop();
    else parts.push([open.at(-1) ?? '', piece.replace(/&(?:amp|lt|gt|quot|#x27);/g, (entity) => ENTITIES[entity])]);
  }
  return parts;
}
