// What a screen reader says of an answer that is being written: whole sentences, not tokens.
import { html, useEffect, useRef } from '../vendor/preact.js';
import { splitThoughts } from '../text/thoughts.js';

const END = /[.!?。！？؟:;](?=\s)|\n/g;

export function Announcer({ node, isBusy }) {
  const said = useRef({ id: '', length: 0 });
  const host = useRef(null);
  const region = useRef(null);
  const { content } = node ? splitThoughts(node) : { content: '' };
  useEffect(() => { region.current = liveRegion(host.current); }, []);
  useEffect(() => {
    if (!isBusy && said.current.id !== node?.id) return; // it was there before
    if (said.current.id !== node.id) said.current = { id: node.id, length: 0 };
    const begin = said.current.length;
    const end = isBusy ? begin + endOfSentences(content.slice(begin)) : content.length;
    if (end > begin) region.current.textContent = content.slice(begin, end).trim();
    said.current.length = end;
  }, [node?.id, content, isBusy]);
  return html`<div class="hidden" ref=${host} />`;
}

/** The text stands in the conversation already: where it stands once more, only screen readers find it. */
function liveRegion(host) {
  const region = document.createElement('p');
  region.setAttribute('aria-live', 'polite');
  host.attachShadow({ mode: 'closed' }).append(region);
  return region;
}

function endOfSentences(text) {
  const last = [...text.matchAll(END)].at(-1);
  return last ? last.index + last[0].length : 0;
}
