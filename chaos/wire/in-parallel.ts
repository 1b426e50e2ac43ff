import { nowMs } from '../history.ts'
import { pause } from './play.ts'

/**
 * Works on all items, at most `jobs` at a time, and fewer while the event loop is late: a stalled process would be a
 * fault of its own in every run.
 */
export async function inParallel<T>(
  items: readonly T[],
  jobs: number,
  work: (item: T) => Promise<void>,
): Promise<void> {
  const left = [...items]
  const least = Math.min(jobs, LEAST_JOBS)
  let allowed = least
  let running = 0
  let isOver = false
  const adapt = async (): Promise<void> => {
    while (!isOver) {
      const lagMs = await worstLag()
      allowed = lagMs > MOST_LAG_MS ? Math.max(least, allowed * 0.75) : Math.min(jobs, allowed + 1)
    }
  }
  const worker = async (): Promise<void> => {
    for (;;) {
      while (running >= allowed && left.length > 0) await pause(TURN_MS)
      const item = left.shift()
      if (item === undefined) return
      running += 1
      try {
        await work(item)
      } finally {
        running -= 1
      }
    }
  }
  const adapting = adapt()
  try {
    await Promise.all(Array.from({ length: Math.min(jobs, items.length) }, worker))
  } finally {
    isOver = true
    await adapting
  }
}

/** How late timers are, in some turns. */
async function worstLag(): Promise<number> {
  let worst = 0
  for (let turn = 0; turn < 10; turn += 1) {
    const at = nowMs()
    await pause(TURN_MS)
    worst = Math.max(worst, nowMs() - at - TURN_MS)
  }
  return worst
}

const LEAST_JOBS = 4
const MOST_LAG_MS = 40
const TURN_MS = 15
