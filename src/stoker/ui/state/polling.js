// Asks again and again while a component is shown and the page can be seen. A round begins after the end of the one before it.
import { useEffect } from '../vendor/preact.js';

/** @param {(isOver: () => boolean) => Promise<void>} action what a round does; after `isOver()` it must change nothing
 * @param {number} everyMs from the end of a round to the next one */
export function usePolling(action, everyMs) {
  useEffect(() => {
    let timer = 0;
    let isOver = false;
    const round = async () => {
      if (!document.hidden) await action(() => isOver);
      if (!isOver) timer = setTimeout(round, everyMs);
    };
    round();
    return () => { isOver = true; clearTimeout(timer); };
  }, []);
}
