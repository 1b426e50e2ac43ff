/**
 * Replaces the timers of this process by ones that are counted, and returns their number. Node itself lists only timers
 * that keep the process alive, and most of the library's do not. Call it before the package under test is loaded.
 *
 * Timers of `node:timers/promises` are not counted. The soak itself uses those.
 */
export function countTimers(): () => number {
  const live = new Set<unknown>()
  const { setTimeout, clearTimeout, setInterval, clearInterval } = globalThis

  const once = (run: (...args: unknown[]) => void, delayMs?: number, ...args: unknown[]): NodeJS.Timeout => {
    const timer = setTimeout(() => {
      live.delete(timer)
      run(...args)
    }, delayMs)
    live.add(timer)
    return timer
  }
  const again = (run: (...args: unknown[]) => void, delayMs?: number, ...args: unknown[]): NodeJS.Timeout => {
    const timer = setInterval(run, delayMs, ...args)
    live.add(timer)
    return timer
  }
  const cleared =
    (clear: (timer?: NodeJS.Timeout | string | number) => void) =>
    (timer?: NodeJS.Timeout | string | number): void => {
      live.delete(timer)
      clear(timer)
    }
  Object.assign(globalThis, {
    // With the properties of the native one: util.promisify needs them.
    setTimeout: Object.defineProperties(once, Object.getOwnPropertyDescriptors(setTimeout)),
    setInterval: again,
    clearTimeout: cleared(clearTimeout),
    clearInterval: cleared(clearInterval),
  })
  return () => live.size
}
