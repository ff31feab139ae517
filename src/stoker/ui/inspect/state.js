// Which answer is looked at token by token.
import { signal } from '../vendor/preact.js';

/** Null, or `{ chatId, nodeId }`. */
export const inspected = signal(null);
