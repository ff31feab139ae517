// Requests that show what the engine is good at, with what came of them in figures.
import { html, useState } from '../vendor/preact.js';
import { t } from '../locale/index.js';
import { getJson, streamCompletion } from '../wire/api.js';
import { Explain } from './explain.js';

const NUM_PROMPTS = 8;
const BEGINNING = 'You help people to understand how a server of language models works. Answer in two sentences. '.repeat(4);
const LONG = 'The harbor was quiet that morning, and the ships lay still. ';
const STREAM_TOKENS = 160;
const LONG_AFTER = 40;

export function Demos({ model }) {
  const [words, setWords] = useState('');
  const [isBusy, setBusy] = useState(false);
  const run = async (demo) => {
    setBusy(true);
    try {
      await demo(model, setWords);
    } catch (error) {
      setWords(error.message);
    }
    setBusy(false);
  };
  return html`<section class="card" aria-label=${t('demonstration')}><h3>${t('tryIt')}<${Explain} of="demos" /></h3>
    <div class="buttons"><button type="button" disabled=${isBusy} onClick=${() => run(sharedBeginning)}>${t('demoShared', NUM_PROMPTS)}</button>
    <button type="button" disabled=${isBusy} onClick=${() => run(longBesideStream)}>${t('demoLong')}</button></div>
    <p role="status">${words}</p></section>`;
}

/** The pool shows one block that all prompts share: it is computed once. */
async function sharedBeginning(model, say) {
  say(t('demoSharedRuns', NUM_PROMPTS));
  const ask = (number) => getJson('v1/completions', { body: { model, prompt: `${BEGINNING}Question ${number}: what is number ${number}?`, max_tokens: 48 } });
  /** @type {any[]} */
  const replies = await Promise.allSettled(Array.from({ length: NUM_PROMPTS }, (_, number) => ask(number)));
  const usages = replies.filter(({ status }) => status === 'fulfilled').map(({ value }) => value.usage);
  if (!usages.length) throw replies[0].reason;
  const total = usages.reduce((sum, usage) => sum + usage.prompt_tokens, 0);
  const cached = usages.reduce((sum, usage) => sum + (usage.prompt_tokens_details?.cached_tokens ?? 0), 0);
  say(t('demoSharedEnd', usages.length, total, cached));
}

/** A stream goes on while a long prompt is computed in portions beside it: the longest gap between two tokens is told. */
async function longBesideStream(model, say) {
  say(t('demoLongRuns'));
  const { max_model_len: context = 2048 } = await getJson(`v1/models/${encodeURIComponent(model)}`);
  const numWords = Math.min(400, Math.floor((context - STREAM_TOKENS) / 30));
  const times = [];
  let long = null;
  for await (const chunk of streamCompletion({ model, prompt: 'Once upon a time', max_tokens: STREAM_TOKENS, ignore_eos: true })) {
    if (!chunk.choices.length) continue;
    times.push(performance.now());
    if (times.length === LONG_AFTER) long = getJson('v1/completions', { body: { model, prompt: `${Math.random()} ${LONG.repeat(numWords)}`, max_tokens: 1 } });
  }
  const usage = (await long)?.usage;
  const gaps = times.slice(1).map((time, at) => time - times[at]).sort((a, b) => a - b);
  if (!usage) throw new Error(t('demoTooShort'));
  say(t('demoLongEnd', usage.prompt_tokens, gaps[gaps.length >> 1], gaps.at(-1)));
}
