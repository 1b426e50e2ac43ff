import { nowMs, type Stall } from './history.ts'

const TICK_MS = 10
/** A process whose timers did not run for longer than this was stalled. */
export const STALL_MS = 25

/** Notices when this process was stalled: the proxies between clients and servers are in it. */
export function watchStalls(): { stalls: Stall[] } & Disposable {
  const stalls: Stall[] = []
  let lastMs = nowMs()
  const timer = setInterval(() => {
    const atMs = nowMs()
    if (atMs - lastMs > STALL_MS) stalls.push({ fromMs: lastMs, toMs: atMs })
    lastMs = atMs
  }, TICK_MS)
  return { stalls, [Symbol.dispose]: () => clearInterval(timer) }
}
