/**
 * What exists now: the leases that are held, or the claims that wait, by their claim's id. An id is counted once and
 * removed once, so that neither a repeated event nor one whose beginning was not seen makes the count drift.
 */
export class Population {
  readonly #members = new Map<string, Member>()
  readonly #groups = new Set<string>()

  add(id: string, group: string, nowMs: number): void {
    this.#groups.add(group)
    // A map keeps the order of insertion, and the last one is the youngest.
    this.#members.delete(id)
    this.#members.set(id, { group, sinceMs: nowMs })
  }

  /** Makes a group visible while it is empty. */
  open(group: string): void {
    this.#groups.add(group)
  }

  /** Returns whether it was there. */
  remove(id: string): boolean {
    return this.#members.delete(id)
  }

  clear(): void {
    this.#members.clear()
  }

  /**
   * The size of each group, and since when its oldest member is there. Counted here and not with each event: a server
   * reads this a few times a minute, and locks come and go thousands of times a second.
   */
  read(): Iterable<GroupReading> {
    const readings = new Map<string, GroupReading>()
    for (const group of this.#groups) readings.set(group, { group, count: 0, sinceMs: undefined })
    for (const { group, sinceMs } of this.#members.values()) {
      const reading = readings.get(group) as GroupReading
      reading.count += 1
      reading.sinceMs ??= sinceMs
    }
    return readings.values()
  }
}

interface Member {
  readonly group: string
  readonly sinceMs: number
}

export interface GroupReading {
  readonly group: string
  count: number
  sinceMs: number | undefined
}
