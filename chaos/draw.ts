import { createHash } from 'node:crypto'

/** Random numbers that are the same for the same seed, on every machine. */
export class Draw {
  readonly #state: Uint32Array

  constructor(seed: string) {
    const digest = createHash('sha256').update(seed).digest()
    this.#state = Uint32Array.from({ length: 4 }, (_, at) => digest.readUInt32LE(at * 4))
  }

  /** A number from 0 to below 1: 32 random bits of the generator sfc32. */
  fraction(): number {
    const s = this.#state
    const [a = 0, b = 0, c = 0, count = 0] = s
    const sum = (a + b + count) >>> 0
    s[3] = count + 1
    s[0] = b ^ (b >>> 9)
    s[1] = c + (c << 3)
    s[2] = ((c << 21) | (c >>> 11)) + sum
    return sum / 2 ** 32
  }

  chance(probability: number): boolean {
    return this.fraction() < probability
  }

  between(least: number, most: number): number {
    return least + this.fraction() * (most - least)
  }

  /** An integer. Both ends are included. */
  whole(least: number, most: number): number {
    return least + Math.floor(this.fraction() * (most - least + 1))
  }

  one<T>(list: readonly T[]): T {
    if (list.length === 0) throw new RangeError('nothing to draw from')
    return list[this.whole(0, list.length - 1)] as T
  }

  /** `count` different items, in the order of the list. */
  some<T>(list: readonly T[], count: number): T[] {
    const left = list.map((_, at) => at)
    while (left.length > count) left.splice(this.whole(0, left.length - 1), 1)
    return left.map((at) => list[at] as T)
  }

  /** One item, with a probability in proportion to its weight. */
  weighted<T>(list: readonly (readonly [item: T, weight: number])[]): T {
    let left = this.fraction() * list.reduce((sum, [, weight]) => sum + weight, 0)
    for (const [item, weight] of list) {
      left -= weight
      if (left < 0) return item
    }
    throw new RangeError('nothing to draw from')
  }
}
