/**
 * What exists now: the leases that are held, or the claims that wait, by their claim's id. An id is counted once and
 * removed once, so that neither a repeated event nor one whose beginning was not seen makes the count drift.
 */
export class Population {
  readonly #groups = new Map<string, Map<string, number>>()
  readonly #groupOf = new Map<string, string>()

  add(id: string, group: string, nowMs: number): void {
    this.remove(id)
    this.#groupOf.set(id, group)
    this.open(group).set(id, nowMs)
  }

  /** Makes a group visible while it is empty. */
  open(group: string): Map<string, number> {
    const members = this.#groups.get(group) ?? new Map<string, number>()
    this.#groups.set(group, members)
    return members
  }

  /** Returns whether it was there. The group is that of `add`: a template may change in between. */
  remove(id: string): boolean {
    const group = this.#groupOf.get(id)
    if (group === undefined) return false
    this.#groupOf.delete(id)
    this.#groups.get(group)?.delete(id)
    return true
  }

  clear(): void {
    this.#groupOf.clear()
    for (const members of this.#groups.values()) members.clear()
  }

  /** The size of each group, and since when its oldest member is there. A map keeps the order of insertion. */
  *read(): Iterable<{ readonly group: string; readonly count: number; readonly sinceMs: number | undefined }> {
    for (const [group, members] of this.#groups) {
      const [sinceMs] = members.values()
      yield { group, count: members.size, sinceMs }
    }
  }
}
