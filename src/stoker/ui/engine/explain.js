// What the figures of the engine view mean, in words.
import { html, useState } from '../vendor/preact.js';

const WORDS = {
  now: 'Running requests have a part in every step. Waiting ones have none yet, because all places or all of the KV pool are taken. Tokens per second are those of the last three seconds.',
  pool: 'The KV cache keeps what the model has computed for each token. Its width here is its size in tokens. Requests with the same beginning share it: the beginning is one block, and what differs stands below it. What finished conversations left is pale, stays for the next turn, and leaves when somebody needs the room.',
  steps: 'The engine computes in steps. In each step every running request gets its next token, and prompts are computed in portions beside them. The height of a bar is the time of a step, the color what it was for.',
  sequences: 'A request is queued, then its prompt is computed, then it decodes: one token a step, more if drafts come true. The part of a prompt that was found in the cache was not computed again.',
  tiers: 'What leaves the pool can stay in memory or on disk and be restored, which is faster than computing it again.',
  moments: 'What happened: arrivals, first tokens, ends, and what had to leave the pool.',
};

export function Explain({ of: name }) {
  const [isOpen, setOpen] = useState(false);
  return html`<button type="button" class="quiet explain" aria-label=${`Explain: ${name}`} aria-expanded=${isOpen} onClick=${() => setOpen(!isOpen)}>?</button>
    ${isOpen && html`<p class="explanation">${WORDS[name]}</p>`}`;
}
