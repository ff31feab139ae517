// What an answer has taken, and how far its prompt is.
import { html } from '../vendor/preact.js';
import { models } from '../state/server.js';

export function Numbers({ message }) {
  const { speed = 0, tokens, prompt, cached, firstMs, drafted, kept } = message.stats ?? {};
  const context = models.value.find(({ id }) => id === message.model)?.max_model_len;
  const used = prompt === undefined ? 0 : prompt + tokens;
  const parts = [
    message.model,
    speed > 0 && `${speed.toFixed(1)} tok/s`,
    tokens !== undefined && `${tokens.toLocaleString()} tokens`,
    prompt !== undefined && `prompt ${prompt.toLocaleString()}${cached ? `, ${cached.toLocaleString()} cached` : ''}`,
    firstMs > 0 && `first token ${(firstMs / 1000).toFixed(2)} s`,
    drafted > 0 && `drafts ${kept}/${drafted} kept`,
    message.finish === 'length' && 'cut at the token limit',
    message.finish === 'stopped' && 'stopped',
  ];
  return html`<span class="numbers" title=${message.id_of_reply}>${parts.filter(Boolean).join(' · ')}
    ${context > 0 && used > 0 && html` <meter aria-label="Context used" title=${`${used.toLocaleString()} of ${context.toLocaleString()} tokens of context`} max=${context} value=${used} />`}</span>`;
}

/** Before the first token: how much of the prompt is computed, and about how long the rest takes. */
export function Progress({ progress }) {
  if (!progress || progress.processed >= progress.total) return html`<p class="waiting">Waiting for the first token …</p>`;
  const { total, cache, processed, time_ms: ms } = progress;
  const computed = processed - cache;
  const restS = computed > 0 ? ((ms / computed) * (total - processed)) / 1000 : 0;
  return html`<p class="waiting">Reading the prompt: ${processed.toLocaleString()} of ${total.toLocaleString()} tokens${cache ? `, ${cache.toLocaleString()} from the cache` : ''}${restS >= 1 ? `, about ${restS.toFixed(0)} s left` : ''}
    <progress aria-label="Prompt computed" max=${total} value=${processed} /></p>`;
}
