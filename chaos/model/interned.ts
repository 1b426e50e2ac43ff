/** Gives equal values the same small number. So a state is a few numbers, and every step is computed once. */
export class Interned<T> {
  readonly #values: T[] = []
  readonly #ids = new Map<string, number>()

  id(value: T): number {
    const key = JSON.stringify(value)
    const known = this.#ids.get(key)
    if (known !== undefined) return known
    this.#ids.set(key, this.#values.length)
    return this.#values.push(value) - 1
  }

  at(id: number): T {
    return this.#values[id] as T
  }
}

/** Remembers the result for each pair of numbers. The first one is small, as `Interned` gives it. */
export function memo<T>(compute: (id: number, detail: number) => T): (id: number, detail: number) => T {
  const known: (Map<number, T> | undefined)[] = []
  return (id, detail) => {
    let details = known[id]
    if (details === undefined) {
      details = new Map()
      known[id] = details
    }
    let value = details.get(detail)
    if (value === undefined) {
      value = compute(id, detail)
      details.set(detail, value)
    }
    return value
  }
}
