// What an answer has taken, and how far its prompt is.
import { html } from '../vendor/preact.js';
import { decimal, number, t } from '../locale/index.js';
import { models } from '../state/server.js';

const ENDS = new Set(['length', 'stopped', 'edited', 'content_filter', 'error']);

export function Numbers({ message }) {
  const { speed = 0, tokens, prompt, cached, firstMs, drafted, kept } = message.stats ?? {};
  const context = models.value.find(({ id }) => id === message.model)?.max_model_len ?? 0;
  const used = prompt === undefined ? 0 : prompt + tokens;
  const parts = [
    message.model,
    speed > 0 && t('speed', decimal(speed)),
    tokens !== undefined && t('numTokens', tokens),
    prompt !== undefined && t('promptTokens', prompt, cached),
    firstMs > 0 && t('firstToken', decimal(firstMs / 1000, 2)),
    drafted > 0 && t('draftsKept', kept, drafted),
    ENDS.has(message.finish) && t(`end_${message.finish}`),
  ];
  return html`<span class="numbers" title=${message.id_of_reply && t('requestId', message.id_of_reply)}>${parts.filter(Boolean).map((part) => html`<span key=${part}>${part}</span>`)}
    ${context > 0 && used > 0 && html`<meter aria-label=${t('contextUsed')} title=${t('contextUsedOf', used, context)} max=${context} value=${used} />`}</span>`;
}

/** Before the first token: how much of the prompt is computed, and about how long the rest takes. */
export function Progress({ progress }) {
  if (!progress || progress.processed >= progress.total) return html`<p class="waiting"><span class="pulse" aria-hidden="true"></span>${t('waitingForFirst')}</p>`;
  const { total, cache, processed, time_ms: ms } = progress;
  const computed = processed - cache;
  const restS = computed > 0 ? ((ms / computed) * (total - processed)) / 1000 : 0;
  return html`<p class="waiting">${t('readingPrompt', number(processed), number(total), cache, restS)}
    <progress aria-label=${t('promptComputed')} max=${total} value=${processed} /></p>`;
}
