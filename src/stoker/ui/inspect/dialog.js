// An answer token by token: how likely each was, what else was possible, and where the cached part of its prompt ended.
import { html, useEffect, useMemo, useState } from '../vendor/preact.js';
import { branch } from '../chat/answer.js';
import { Dialog } from '../chat/dialog.js';
import { decimal, number, t } from '../locale/index.js';
import { chatOf } from '../state/chats.js';
import { chosenStep, inspected } from './state.js';
import { entropy, resampled, scored } from './tokens.js';

const CLASSES = 6;
const TRACED = ['step', 'drafted'];
/** @type {[string, {min: number, max: number, step: number}, number][]} */
const LAB = [
  ['temperature', { min: 0, max: 2, step: 0.05 }, 1], ['topK', { min: 0, max: 10, step: 1 }, 0],
  ['topP', { min: 0, max: 1, step: 0.01 }, 1], ['minP', { min: 0, max: 1, step: 0.01 }, 0],
];
const percent = (value) => `${decimal(100 * value)} %`;

export function Inspection() {
  return inspected.value && html`<${Tokens} key=${inspected.value.nodeId} ...${inspected.value} />`;
}

function Tokens({ chatId, nodeId }) {
  const [found, setFound] = useState(null);
  const [error, setError] = useState('');
  const [chosen, setChosen] = useState(0);
  const [pointed, setPointed] = useState(null);
  const [colors, setColors] = useState('probability');
  const close = () => { inspected.value = null; };
  useEffect(() => {
    const controller = new AbortController();
    scored(chatId, nodeId, controller.signal).then(setFound, (reason) => { if (!controller.signal.aborted) setError(reason.message); });
    return () => controller.abort();
  }, []);
  const answer = found?.answer ?? [];
  const shown = answer[pointed ?? chosen];
  const use = (text) => {
    close();
    branch(chatId, chatOf(chatId).nodes[nodeId], answer.slice(0, chosen).map((token) => token.text).join('') + text);
  };
  return html`<${Dialog} title=${t('tokens')} close=${close} name="inspection">
    ${error && html`<p class="error" role="alert">${error}</p>`}
    ${!found && !error && html`<p class="waiting" role="status"><span class="pulse" aria-hidden="true"></span>${t('scoring')}</p>`}
    ${found && html`
      <label class="colors">${t('colorBy')} <select value=${colors} onChange=${({ currentTarget }) => setColors(currentTarget.value)}>
        ${['probability', 'entropy', ...(found.isTraced ? TRACED : [])].map((each) => html`<option key=${each} value=${each}>${t(`color_${each}`)}</option>`)}</select></label>
      <h3>${t('answer')} <small>${t('answerFacts', answer.length, found)}</small></h3>
      <p class="tokens" dir="auto" onPointerLeave=${() => setPointed(null)}>${answer.map((token, at) => html`<${Token} key=${at} token=${token} colors=${colors} isChosen=${at === chosen} choose=${() => { setChosen(at); setPointed(null); }} point=${() => setPointed(at)} />`)}</p>
      ${shown && html`<${Alternatives} token=${shown} slot=${found.slot} use=${use} />`}
      <h3>${t('promptHeading')} <small>${t('promptFacts', found.prompt.length, found.cached, found.from)}</small></h3>
      <${Prompt} found=${found} colors=${colors} />`}
    <div class="actions"><button type="button" onClick=${close}>${t('close')}</button></div><//>`;
}

function Prompt({ found: { prompt, cached }, colors }) {
  return useMemo(() => html`<p class="tokens prompt" dir="auto">${prompt.map((token, at) => html`${at === cached && at > 0 && html`<span class="cache-line" role="separator" aria-label=${t('cacheLine')}>${t('cacheLineWords')}</span>`}<${Token} key=${at} token=${token} colors=${colors} isCached=${at < cached} />`)}</p>`, [prompt, cached, colors]);
}

function Token({ token, colors, isChosen, isCached, choose, point }) {
  const level = levelOf(token, colors);
  const name = `token ${TRACED.includes(colors) ? 'm' : 'l'}${level}${isChosen ? ' chosen' : ''}${isCached ? ' cached' : ''}`;
  const text = token.text.replace(/\n/g, '↵\n');
  const words = token.logprob === null ? t('firstOfAll') : percent(Math.exp(token.logprob));
  return choose ? html`<button type="button" class=${name} aria-label=${token.text.trim() ? undefined : JSON.stringify(token.text)} aria-pressed=${isChosen} onClick=${choose} onPointerEnter=${point} onFocus=${point}>${text}</button>` : html`<span class=${name} title=${words}>${text}</span>`;
}

/** From 0 for what was certain. Steps alternate, so that tokens of one step are seen to belong together. */
function levelOf({ logprob, top, step, isDrafted }, colors) {
  if (colors === 'step') return (step ?? 0) % CLASSES;
  if (colors === 'drafted') return isDrafted ? 1 : 0;
  if (logprob === null) return 0;
  const part = colors === 'entropy' ? entropy(top) / Math.log2(10) : 1 - Math.exp(logprob);
  return Math.min(CLASSES - 1, Math.max(0, Math.floor(part * CLASSES)));
}

/** The sampler lab: what other settings would have made of this position. */
function Alternatives({ token, slot, use }) {
  const [lab, setLab] = useState(Object.fromEntries(LAB.map(([name, , value]) => [name, value])));
  const rows = resampled(token.top, lab);
  const showStep = () => { chosenStep.value = token.step; inspected.value = null; };
  return html`<section class="lab" aria-label=${t('alternatives')}><h3>${t('alternatives')} <small>${t('alternativesOf', token.text)}</small></h3>
    ${token.step !== undefined && html`<p class="made">${t('madeIn', number(token.step), slot, token.isDrafted)} <a href="#engine" onClick=${showStep}>${t('showStep')}</a></p>`}
    <div class="grid">${LAB.map(([name, range]) => html`<label key=${name}>${t(name === 'temperature' ? name : `lab_${name}`)} <span>${lab[name]}</span>
      <input type="range" ...${range} value=${lab[name]} onInput=${({ currentTarget }) => setLab({ ...lab, [name]: Number(currentTarget.value) })} /></label>`)}</div>
    <table><caption class="hidden">${t('alternativesTable')}</caption><thead><tr><th scope="col">${t('token')}</th><th scope="col">${t('model')}</th><th scope="col">${t('withSettings')}</th></tr></thead>
      <tbody>${rows.map(({ text, logprob, chance }) => html`<tr key=${text}><th scope="row"><button type="button" class=${text === token.text ? 'same' : 'quiet'} onClick=${() => use(text)}>${JSON.stringify(text)}</button></th>
        <td>${percent(Math.exp(logprob))}</td><td>${percent(chance)} <meter aria-label=${t('chance')} value=${chance} /></td></tr>`)}</tbody></table></section>`;
}
