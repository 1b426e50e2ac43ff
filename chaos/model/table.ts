/** The states in the order in which they were found, each a few whole numbers. Nothing is hashed away. */
export class StateTable {
  readonly #width: number
  #rows: Int32Array
  #parents: Int32Array
  /** Open addressing: 1 + the index of the state, or 0. */
  #slots: Int32Array
  size = 0

  constructor(width: number) {
    this.#width = width
    this.#rows = new Int32Array(width * 4_096)
    this.#parents = new Int32Array(4_096)
    this.#slots = new Int32Array(16_384)
  }

  /** Whether the state is new. */
  add(state: Int32Array, parent: number): boolean {
    if ((this.size + 1) * 2 > this.#slots.length) this.#grow()
    const slot = this.#slotOf(state)
    if (this.#slots[slot] !== 0) return false
    if ((this.size + 1) * this.#width > this.#rows.length) {
      this.#rows = doubled(this.#rows)
      this.#parents = doubled(this.#parents)
    }
    this.#rows.set(state, this.size * this.#width)
    this.#parents[this.size] = parent
    this.size += 1
    this.#slots[slot] = this.size
    return true
  }

  at(index: number): Int32Array {
    return this.#rows.slice(index * this.#width, (index + 1) * this.#width)
  }

  /** The states on the way to this one, the first one first. */
  pathTo(index: number): Int32Array[] {
    const path: Int32Array[] = []
    for (let at = index; at !== -1; at = this.#parents[at] as number) path.unshift(this.at(at))
    return path
  }

  #slotOf(state: Int32Array): number {
    const mask = this.#slots.length - 1
    let hash = 0x811c9dc5
    for (const value of state) hash = Math.imul(hash ^ value, 0x9e3779b1) ^ (hash >>> 15)
    let slot = (hash ^ (hash >>> 13)) & mask
    for (;;) {
      const found = this.#slots[slot] as number
      if (found === 0 || this.#isAt(found - 1, state)) return slot
      slot = (slot + 1) & mask
    }
  }

  #isAt(index: number, state: Int32Array): boolean {
    const from = index * this.#width
    for (let at = 0; at < this.#width; at += 1) if (this.#rows[from + at] !== state[at]) return false
    return true
  }

  #grow(): void {
    this.#slots = new Int32Array(this.#slots.length * 2)
    for (let index = 0; index < this.size; index += 1) this.#slots[this.#slotOf(this.at(index))] = index + 1
  }
}

function doubled(before: Int32Array): Int32Array {
  const after = new Int32Array(before.length * 2)
  after.set(before)
  return after
}
