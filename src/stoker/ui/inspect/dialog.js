// An answer token by token: how likely each was, what else was possible, and where the cached part of its prompt ended.
import { html, useEffect, useRef, useState } from '../vendor/preact.js';
import { branch } from '../chat/answer.js';
import { chatOf } from '../state/chats.js';
import { inspected } from './state.js';
import { entropy, resampled, scored } from './tokens.js';

const CLASSES = 6;
const LAB = [
  ['temperature', 'Temperature', { min: 0, max: 2, step: 0.05 }, 1],
  ['topK', 'Top k', { min: 0, max: 10, step: 1 }, 0],
  ['topP', 'Top p', { min: 0, max: 1, step: 0.01 }, 1],
  ['minP', 'Min p', { min: 0, max: 1, step: 0.01 }, 0],
];

export function Inspection() {
  return inspected.value && html`<${Dialog} key=${inspected.value.nodeId} ...${inspected.value} />`;
}

function Dialog({ chatId, nodeId }) {
  const dialog = useRef(null);
  const [found, setFound] = useState(null);
  const [error, setError] = useState('');
  const [chosen, setChosen] = useState(0);
  const [colors, setColors] = useState('probability');
  const close = () => { inspected.value = null; };
  useEffect(() => {
    const controller = new AbortController();
    dialog.current.showModal();
    scored(chatId, nodeId, controller.signal).then(setFound, (reason) => { if (!controller.signal.aborted) setError(reason.message); });
    return () => controller.abort();
  }, []);
  const answer = found?.answer ?? [];
  const use = (text) => {
    close();
    branch(chatId, chatOf(chatId).nodes[nodeId], answer.slice(0, chosen).map((token) => token.text).join('') + text);
  };
  return html`<dialog class="inspection" ref=${dialog} aria-labelledby="inspection-title" onClose=${close}>
    <h2 id="inspection-title">Tokens</h2>
    ${error && html`<p class="error" role="alert">${error}</p>`}
    ${!found && !error && html`<p role="status">The server scores the answer …</p>`}
    ${found && html`
      <label>Color by <select value=${colors} onChange=${({ currentTarget }) => setColors(currentTarget.value)}><option>probability</option><option>entropy</option></select></label>
      <h3>Answer <small>${answer.length} tokens</small></h3>
      <p class="tokens" dir="auto">${answer.map((token, at) => html`<${Token} key=${at} token=${token} colors=${colors} isChosen=${at === chosen} choose=${() => setChosen(at)} />`)}</p>
      ${answer[chosen] && html`<${Alternatives} token=${answer[chosen]} use=${use} />`}
      <h3>Prompt <small>${found.prompt.length} tokens, ${found.cached} from the cache</small></h3>
      <p class="tokens prompt" dir="auto">${found.prompt.map((token, at) => html`${at === found.cached && at > 0 && html`<span class="cache-line" role="separator" aria-label="Here the cached part ended">cached ▲ ▼ computed</span>`}<${Token} key=${at} token=${token} colors=${colors} isCached=${at < found.cached} />`)}</p>`}
    <div class="actions"><button type="button" onClick=${close}>Close</button></div>
  </dialog>`;
}

function Token({ token, colors, isChosen, isCached, choose }) {
  const level = levelOf(token, colors);
  const words = token.logprob === null ? 'first token' : `${(100 * Math.exp(token.logprob)).toFixed(1)} %`;
  const name = `token l${level}${isChosen ? ' chosen' : ''}${isCached ? ' cached' : ''}`;
  const text = token.text.replace(/\n/g, '↵\n');
  return choose ? html`<button type="button" class=${name} title=${words} aria-pressed=${isChosen} onClick=${choose}>${text}</button>` : html`<span class=${name} title=${words}>${text}</span>`;
}

function levelOf({ logprob, top }, colors) {
  if (logprob === null) return 0;
  const part = colors === 'entropy' ? entropy(top) / Math.log2(10) : 1 - Math.exp(logprob);
  return Math.min(CLASSES - 1, Math.max(0, Math.floor(part * CLASSES)));
}

/** The sampler lab: what other settings would have made of this position. */
function Alternatives({ token, use }) {
  const [lab, setLab] = useState(Object.fromEntries(LAB.map(([name, , , value]) => [name, value])));
  const rows = resampled(token.top, lab);
  return html`<section class="lab" aria-label="Alternatives"><h3>Alternatives <small>of “${token.text}”: choose one to write on from there</small></h3>
    <div class="grid">${LAB.map(([name, label, range]) => html`<label key=${name}>${label} ${lab[name]}
      <input type="range" ...${range} value=${lab[name]} onInput=${({ currentTarget }) => setLab({ ...lab, [name]: Number(currentTarget.value) })} /></label>`)}</div>
    <table><caption class="hidden">Alternatives with their chances</caption><thead><tr><th scope="col">Token</th><th scope="col">Model</th><th scope="col">With these settings</th></tr></thead>
      <tbody>${rows.map(({ text, logprob, chance }) => html`<tr key=${text}><th scope="row"><button type="button" class=${text === token.text ? 'same' : 'quiet'} onClick=${() => use(text)}>${JSON.stringify(text)}</button></th>
        <td>${(100 * Math.exp(logprob)).toFixed(1)} %</td><td>${(100 * chance).toFixed(1)} % <meter aria-label="Chance" value=${chance} /></td></tr>`)}</tbody></table></section>`;
}
