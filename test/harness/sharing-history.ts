/** One turn of one process. Times are on the machine's monotonic clock, in ms. */
export interface Turn {
  kind: 'read' | 'write' | 'permits' | 'several'
  names: string[]
  permits: number
  askedMs: number
  /** From when on it is known to be in the queue, or null if it was granted at once. */
  queuedMs: number | null
  beganMs: number
  endedMs: number
}

/** Pairs of turns that were inside at the same time although one of them is exclusive. */
export function overlaps(turns: readonly Turn[]): [Turn, Turn][] {
  const found: [Turn, Turn][] = []
  for (const group of byName(turns).values()) {
    let inside: Turn[] = []
    for (const turn of group.toSorted((a, b) => a.beganMs - b.beganMs)) {
      inside = inside.filter((other) => other.endedMs > turn.beganMs)
      for (const other of inside) if (turn.kind !== 'read' || other.kind !== 'read') found.push([other, turn])
      inside.push(turn)
    }
  }
  return found
}

/** Writers in the queue, each with a turn that was asked for later but began before. */
export function overtaken(turns: readonly Turn[]): [writer: Turn, by: Turn][] {
  const byAsked = turns.toSorted((a, b) => a.askedMs - b.askedMs)
  return turns
    .filter((turn): turn is Turn & { queuedMs: number } => turn.kind === 'write' && turn.queuedMs !== null)
    .flatMap((writer) => {
      const found: [Turn, Turn][] = []
      for (let at = firstAfter(byAsked, writer.queuedMs); at < byAsked.length; at += 1) {
        const other = byAsked[at] as Turn
        if (other.askedMs >= writer.beganMs) break
        if (other.beganMs < writer.beganMs) found.push([writer, other])
      }
      return found
    })
}

/** The largest number of permits that were taken at the same time. */
export const mostOut = (turns: readonly Turn[]): number => Math.max(0, ...levels(turns).map(({ out }) => out))

/** How long permits that were enough for every waiter stayed free, each time. */
export function idleMs(turns: readonly Turn[], limit: number): number[] {
  const found: number[] = []
  let sinceMs: number | undefined
  for (const { atMs, out, wanted } of levels(turns)) {
    const isIdle = wanted > 0 && out + wanted <= limit
    if (isIdle) sinceMs ??= atMs
    else if (sinceMs !== undefined) {
      found.push(atMs - sinceMs)
      sinceMs = undefined
    }
  }
  return found.sort((a, b) => a - b)
}

/** The permits that are taken, and the most that a waiter wants, after every change. */
function levels(turns: readonly Turn[]): { atMs: number; out: number; wanted: number }[] {
  const changes = turns.flatMap(({ queuedMs, beganMs, endedMs, permits }) => [
    ...(queuedMs === null ? [] : [{ atMs: queuedMs, takes: 0, permits, waits: 1 }]),
    { atMs: beganMs, takes: permits, permits, waits: queuedMs === null ? 0 : -1 },
    { atMs: endedMs, takes: -permits, permits, waits: 0 },
  ])
  let out = 0
  /** The number of waiters by the permits that they want. */
  const waiting: number[] = []
  // At the same time, an end comes before a begin.
  return changes
    .sort((a, b) => a.atMs - b.atMs || a.takes - b.takes)
    .map(({ atMs, takes, permits, waits }) => {
      out += takes
      waiting[permits] = (waiting[permits] ?? 0) + waits
      return {
        atMs,
        out,
        wanted: Math.max(
          0,
          waiting.findLastIndex((count) => count > 0),
        ),
      }
    })
}

function byName(turns: readonly Turn[]): Map<string, Turn[]> {
  const groups = new Map<string, Turn[]>()
  for (const turn of turns) {
    for (const name of turn.names) {
      const group = groups.get(name)
      if (group === undefined) groups.set(name, [turn])
      else group.push(turn)
    }
  }
  return groups
}

function firstAfter(byAsked: readonly Turn[], ms: number): number {
  let [low, high] = [0, byAsked.length]
  while (low < high) {
    const middle = (low + high) >> 1
    if ((byAsked[middle] as Turn).askedMs > ms) high = middle
    else low = middle + 1
  }
  return low
}
