// What the engines of a model have done in the last minutes, from the events of `/engine/events`. It knows no DOM.

export const KEPT_S = 300;
const MAX_FRAMES = 3000;
const MAX_STEPS = 400;
const MAX_MOMENTS = 200;
const MAX_NEWS = 50;

export const EMPTY = { hello: null, t: 0, engines: [], news: [], error: '' };

/** The state after an event. Parts that have not changed stay the same objects, so that minutes of states are small. */
export function applied(state, name, data) {
  if (name === 'hello') return { ...state, hello: data };
  if (name === 'snapshot') {
    return { ...state, t: data.t, error: data.error ?? '', engines: data.engines.map((engine) => joined(state, engine)) };
  }
  if (name === 'news') return { ...state, news: [...state.news, data].slice(-MAX_NEWS) };
  if (!data.engines?.length) return state;
  const ticks = new Map(data.engines.map((tick) => [tick.replica, tick]));
  const engines = state.engines.map((engine) => (ticks.has(engine.replica) ? ticked(engine, ticks.get(engine.replica)) : engine));
  return { ...state, t: data.t, engines };
}

/** A snapshot says of the past only what is new; what was told before stays. */
function joined(state, engine) {
  const before = state.engines.find((each) => each.replica === engine.replica && each.recorder === engine.recorder);
  return { ...engine, steps: newest(before?.steps, engine.steps, MAX_STEPS), moments: newest(before?.moments, engine.moments, MAX_MOMENTS) };
}

function ticked(engine, tick) {
  return {
    ...engine,
    kv: tick.kv ?? engine.kv,
    totals: tick.totals ?? engine.totals,
    tiers: tick.tiers ?? engine.tiers,
    seq: changed(engine.seq, tick.seq),
    tree: changed(engine.tree, tick.tree),
    steps: newest(engine.steps, tick.steps, MAX_STEPS),
    moments: newest(engine.moments, tick.moments, MAX_MOMENTS),
  };
}

function changed(items, changes) {
  if (!changes) return items;
  const kept = new Map(items.map((item) => [item.id, item]));
  for (const item of changes.set) kept.set(item.id, item);
  for (const id of changes.gone) kept.delete(id);
  return [...kept.values()];
}

function newest(before = [], added, most) {
  if (!added?.length) return before;
  const last = serialOf(before.at(-1));
  return [...before, ...added.filter((record) => serialOf(record) > last)].slice(-most);
}

const serialOf = (record) => (record === undefined ? 0 : Array.isArray(record) ? record[0] : record.serial);

/** The states of the last minutes, the oldest first. */
export function remembered(frames, state) {
  const begin = state.t - KEPT_S;
  const first = frames.findIndex((frame) => frame.t >= begin);
  return [...(first > 0 ? frames.slice(first) : frames).slice(-MAX_FRAMES + 1), state];
}

/** Tokens a second in the last seconds, written and of prompts. */
export function rates(engines, t, seconds = 3) {
  let written = 0;
  let prompt = 0;
  for (const { steps } of engines) {
    for (const [, at, , , , decodes, entries, , kept] of steps) {
      if (at < t - seconds) continue;
      written += decodes + kept;
      prompt += entries;
    }
  }
  return { written: written / seconds, prompt: prompt / seconds };
}

/** Where each node of a pool stands: `x` and `own` are its own tokens, `span` also what is below it.
 *
 *     depth 0   [own tokens |............ span ............]
 *     depth 1               [ child ][ child |.. span ..]      every column belongs to one node:
 *     depth 2                                [ child ]         the widths add up to what the pool holds
 */
export function icicle(tree) {
  const below = new Map();
  for (const node of tree) {
    if (!below.has(node.parent)) below.set(node.parent, []);
    below.get(node.parent).push(node);
  }
  const placed = [];
  const place = (node, x, depth) => {
    const spot = { node, x, own: node.n, depth, span: node.n };
    placed.push(spot);
    const children = node.id > 0 ? (below.get(node.id) ?? []) : [];
    for (const child of children.sort((a, b) => a.id - b.id)) spot.span += place(child, x + spot.span, depth + 1);
    return spot.span;
  };
  let x = 0;
  for (const node of (below.get(0) ?? []).sort((a, b) => Number(b.running) - Number(a.running) || a.id - b.id)) x += place(node, x, 0);
  return placed;
}

/** The steps and moments as a trace for Perfetto or `chrome://tracing`. Times are in microseconds. */
export function trace(state) {
  const events = state.engines.flatMap(({ replica, steps, moments }) => [
    ...steps.map(([, t, ms, forward, sample, decodes, prompt, drafted, kept, restored, members, plan, step]) => ({
      name: prompt ? 'prompt' : 'decode', ph: 'X', pid: replica, tid: 0, ts: t * 1e6 - ms * 1e3, dur: ms * 1e3,
      args: { step, plan_ms: plan, forward_ms: forward, sample_ms: sample, decodes, prompt, drafted, kept, restored, members: Object.fromEntries(members) },
    })),
    ...moments.map(({ t, kind, id, n }) => ({ name: kind, ph: 'i', s: 'p', pid: replica, tid: 0, ts: t * 1e6, args: { id, n } })),
  ]);
  return { traceEvents: events };
}
