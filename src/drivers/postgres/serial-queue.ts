/** A queue of one worker: starts each piece of work when the one before it has settled, even if that one failed. */
export type SerialQueue = <T>(work: () => Promise<T>) => Promise<T>

/** Work that finds the queue empty starts at once, in the same turn of the event loop. */
export function createSerialQueue(): SerialQueue {
  let last: Promise<unknown> | undefined
  return (work) => {
    const turn = last === undefined ? work() : last.then(work, work)
    last = turn
    const leave = (): void => {
      if (last === turn) last = undefined
    }
    turn.then(leave, leave)
    return turn
  }
}
