// The words of the engine view and of the dialog with tokens in English. They are fetched with these.
import { decimal, number } from './format.js';

const count = (value, one, more) => `${number(value)} ${value === 1 ? one : more}`;
const tokens = (value) => count(value, 'token', 'tokens');
const ms = (value) => `${decimal(value)} ms`;

export const words = {
  // Tokens
  alternatives: 'Alternatives', alternativesOf: (text) => `of “${text}”: choose one to write on from there`, alternativesTable: 'Alternatives with their chances', answer: 'Answer', cacheLine: 'Here the cached part ended', cacheLineWords: 'cached ▲ ▼ computed', chance: 'Chance', colorBy: 'Color by', firstOfAll: 'first token', promptHeading: 'Prompt',
  answerFacts: (num, { queueMs, slot }) => `${tokens(num)}${slot === undefined ? '' : `, slot ${slot}`}${queueMs === undefined ? '' : `, waited ${ms(queueMs)}`}`,
  color_probability: 'probability', color_entropy: 'entropy', color_step: 'step', color_drafted: 'drafted', lab_topK: 'Top k', lab_topP: 'Top p', lab_minP: 'Min p',
  madeIn: (step, slot, isDrafted) => `Made in step ${step}${slot === undefined ? '' : `, slot ${slot}`}${isDrafted ? '; it was drafted' : ''}.`, scoring: 'The server scores the answer …', showStep: 'Show the step', token: 'Token', withSettings: 'With these settings',
  promptFacts: (num, cached, from) => {
    const parts = from ? [['pool', from.pool], ['memory', from.memory], ['disk', from.disk]].filter(([, each]) => each) : [];
    return `${tokens(num)}, ${number(cached)} from the cache${parts.length ? ` (${parts.map(([name, each]) => `${name} ${number(each)}`).join(', ')})` : ''}`;
  },

  // The engine view
  asTable: 'As a table', besideChat: 'Beside the chat', goOnTime: 'Go on', healthTable: 'Models', health: (state) => state, live: '(live)', lookingAtEngine: 'Looking at the model …', momentOfLast: 'Moment of the last minutes', now: 'now', numRestarts: (num) => (num ? count(num, 'restart', 'restarts') : ''), pause: 'Pause', restarts: 'Restarts', saveJson: 'Save JSON', saveTrace: 'Save trace',
  timeGroup: 'Time', running: 'running', waiting: 'waiting', pausedCount: 'paused', speedWritten: 'tokens/s written', speedPrompts: 'tokens/s read', poolShare: 'pool', memory: 'in memory', disk: 'on disk', slotsHold: (num, all) => `Sequences: ${num} of ${all} slots hold tokens`,
  explain: (name) => `Explain: ${name}`, readOn: (page) => `More in ${page}.`, name_now: 'now', name_pool: 'pool', name_steps: 'steps', name_sequences: 'sequences', name_tiers: 'tiers', name_moments: 'moments', name_demos: 'demonstrations',
  explain_now: 'Running requests have a part in every step. Waiting ones have none yet, because all places or all of the KV pool are taken. Tokens per second are those of the last three seconds.',
  explain_pool: 'The KV cache keeps what the model has computed for each token. Its width here is its size in tokens. Requests with the same beginning share it: the beginning is one block, and what differs stands below it. What finished conversations left is pale, stays for the next turn, and leaves when another request needs the room.',
  explain_steps: 'The engine computes in steps. In each step every running request gets its next token, and prompts are computed in portions beside them. The height of a bar is the time of a step, the color what it was for.',
  explain_sequences: 'A request is queued, then its prompt is computed, then it decodes: one token a step, more if drafts come true. The part of a prompt that was found in the cache was not computed again.',
  explain_tiers: 'What leaves the pool can stay in memory or on disk and be restored, which is faster than computing it again.', explain_moments: 'What happened: arrivals, first tokens, ends, what had to leave the pool, and models that were loaded or unloaded.',
  explain_demos: 'The first button shows the prefix cache: eight prompts begin alike, and the beginning is computed once. The second one shows fairness: a long prompt is computed in portions, so that the stream beside it does not stop.',

  // The pool
  pool: 'KV pool', poolOf: (replica) => `KV pool of replica ${replica}`, poolUse: (part, capacity, drawn) => `${part} of ${number(capacity)} tokens${drawn ? `, drawn up to ${number(drawn)}` : ''}`, poolWords: (title, held, capacity, retained) => `${title}: ${number(held)} of ${number(capacity)} tokens held, ${number(retained)} of them by finished conversations`,
  poolHint: 'Click a block to read its text.', poolTable: 'Nodes of the prefix tree', keyRunning: 'running', keyRetained: 'finished, may leave', keyPromised: 'promised to this step', keyFree: 'free', finished: 'finished', inMemory: 'In memory', onDisk: 'On disk', partOf: (part, whole) => `${part} of ${whole}`,
  node: 'Node', below: 'Below', tokensColumn: 'Tokens', sharedBy: 'Shared by', slots: 'Slots', leaves: 'Leaves', nth: (at) => `${at}.`, smallParts: 'small parts', readNode: (id) => `Read node ${id}`,
  nodeWords: (node, leaves) => `${tokens(node.n)}${node.num_slots > 1 ? `, shared by ${node.num_slots}` : ''}, ${node.running ? 'running' : 'finished'}${node.slots.length ? `, slot ${node.slots.join(', ')}` : ''}${leaves < Infinity ? `, leaves as number ${leaves}` : ''}${node.id > 0 ? '' : ' (small parts added up)'}`,
  nodeText: (begin, end, num, text) => `Tokens ${number(begin)} to ${number(end)}${num ? `, the first ${number(num)} of them` : ''}: ${text}`,

  // Steps
  steps: 'Steps', stepsHint: 'Point at a bar to see what the step was for.', stepsSaid: (time, num, mean, most) => `last ${time} s: ${number(num)}, ${mean} ms in the mean, ${most} ms at most`, stepsWords: (num, time, most) => `${number(num)} steps in the last ${time} seconds, the slowest ${most} milliseconds`, stepsTable: 'The newest steps',
  step_decode: 'decode', step_prompt: 'prompt', step_kept: 'draft kept', step_thrown: 'draft thrown away', step_sample: 'sampling', step_plan: 'planning', step_forward: 'forward', step: 'Step', time: 'Time', ms: 'ms', requests: 'Requests', memberOf: (slot, id, num) => `slot ${slot}${id ? ` (${id.slice(0, 18)})` : ''}: ${num}`,
  stepWords: (step) => `Step ${number(step.id)}: ${ms(step.ms)} (forward ${ms(step.forward)}, sampling ${ms(step.sample)}), planned in ${ms(step.plan)}. ${count(step.decodes, 'decode', 'decodes')}, ${count(step.prompt, 'prompt token', 'prompt tokens')}${step.drafted ? `, ${step.kept} of ${step.drafted} drafted kept` : ''}${step.restored ? `, ${number(step.restored)} restored` : ''}. ${step.who}`,

  // Sequences
  sequences: 'Sequences', numAlive: (num) => (num ? `${number(num)} alive` : 'no request is alive'), noneAlive: 'Send a message, or try a demonstration below.', sequencesTable: 'Requests that are alive', request: 'Request', slot: 'Slot', age: 'Age', promptColumn: 'Prompt', cachedColumn: 'Cached', written: 'Written', draftsKeptColumn: 'Drafts kept', preempted: 'Preempted',
  anotherClient: 'another client', fromPool: (num) => `${number(num)} pool`, fromMemory: (num) => `${number(num)} memory`, fromDisk: (num) => `${number(num)} disk`, willComeFromDisk: (num) => `${number(num)} will come from disk`, numAdapters: (num) => count(num, 'adapter', 'adapters'), seconds: (value) => `${value} s`,
  seq_queued: 'queued', seq_restoring: 'restoring', seq_prompt: 'prompt', seq_decode: 'decode', seq_paused: 'paused',

  // Cache and moments
  cache: 'Cache', cacheAndDrafts: 'Cache and drafts', sinceStart: 'since the start', promptsCached: 'Prompt tokens from the cache', cachedShare: (part, all, share) => `${number(part)} of ${number(all)} (${share})`, foundInPool: 'Found in the pool', restoredMemory: 'Restored from memory', restoredDisk: 'Restored from disk', evictedFromPool: 'Evicted from the pool',
  preemptions: 'Preemptions', draftsKeptTotal: 'Drafts kept', noneDrafted: 'none drafted', moments: 'Moments', nothingHappened: 'Nothing has happened since the page looks.',
  momentCount: (kind, num, part) => (part !== undefined && part !== null ? `${Math.round(100 * part)} %` : !num ? '' : kind === 'preempted' ? count(num, 'request', 'requests') : tokens(num)),
  kind_arrived: 'arrived', kind_begun: 'begun', kind_first: 'first token', kind_finished: 'finished', kind_ended: 'ended', kind_evicted: 'evicted', kind_preempted: 'preempted', kind_paused: 'paused', kind_resumed: 'resumed', kind_loading: 'loading', kind_loaded: 'loaded', kind_unloaded: 'unloaded', kind_removed: 'removed', kind_crashed: 'crashed', kind_restarted: 'restarted',

  // Demonstrations
  demonstration: 'Demonstration', tryIt: 'Try it', demoShared: (num) => `Send ${num} prompts with one beginning`, demoSharedRuns: (num) => `${num} prompts with one beginning are on their way …`, demoSharedEnd: (num, total, cached) => `${count(num, 'answer', 'answers')}. Of ${number(total)} prompt tokens ${number(cached)} came from the cache.`,
  demoLong: 'Send a long prompt beside a stream', demoLongRuns: 'A stream is written; a long prompt comes beside it …', demoTooShort: 'The stream ended before the long prompt was sent.', demoLongEnd: (prompt, usual, longest) => `While ${number(prompt)} tokens of a prompt were computed, the stream went on: ${ms(usual)} between two tokens, ${ms(longest)} at most.`,
};
