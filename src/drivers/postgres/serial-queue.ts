/** Runs work one after the other, whatever becomes of it. What finds nothing under way begins at once. */
export function createLine(): <T>(work: () => Promise<T>) => Promise<T> {
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
