// What the figures of the engine view mean, in words, with the page of the documentation that says more.
import { html, useState } from '../vendor/preact.js';
import { t } from '../locale/index.js';

/** @param {{of: 'now' | 'pool' | 'steps' | 'sequences' | 'tiers' | 'moments' | 'demos'}} props */
export function Explain({ of: name }) {
  const [isOpen, setOpen] = useState(false);
  return html`<button type="button" class="quiet explain" aria-label=${t('explain', t(`name_${name}`))} aria-expanded=${isOpen} onClick=${() => setOpen(!isOpen)}>?</button>
    ${isOpen && html`<p class="explanation">${t(`explain_${name}`)} <small>${t('readOn', PAGES[name])}</small></p>`}`;
}

const PAGES = { now: 'docs/page.md', pool: 'docs/cache.md', steps: 'docs/architecture.md', sequences: 'docs/page.md', tiers: 'docs/cache.md', moments: 'docs/page.md', demos: 'docs/page.md' };
