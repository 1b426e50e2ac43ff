// @ts-check
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises'

/** Measures the stalls of this process's event loop. `longest()` is the longest one since its last call, in ms. */
export function watchLoop() {
  let longest = 0
  let before = performance.now()
  const watch = async () => {
    for (;;) {
      await sleep(1)
      await nextTurn()
      const now = performance.now()
      longest = Math.max(longest, now - before)
      before = now
    }
  }
  void watch()
  return {
    longest() {
      const found = longest
      longest = 0
      return found
    },
  }
}
