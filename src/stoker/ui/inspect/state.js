// Which answer is looked at token by token, and which step of the engine made the token that is looked at.
import { signal } from '../vendor/preact.js';

/** Null, or `{ chatId, nodeId }`. */
export const inspected = signal(null);
/** The number of a step that is marked in the engine view; null = none. */
export const chosenStep = signal(null);
