import { randomBytes } from 'node:crypto'

/** Randomness, handed in, so that a seed replays a whole run. */
export interface Random {
  /** At least 0, less than 1. */
  fraction(): number
  /** 96 bits, as 16 characters that are safe in a name. */
  id(): string
}

export const systemRandom: Random = {
  fraction: () => Math.random(),
  id: () => {
    if (nextAt >= drawn.length) {
      drawn = randomBytes(ID_BYTES * DRAWN_AT_ONCE).toString('base64url')
      nextAt = 0
    }
    nextAt += ID_LENGTH
    return drawn.slice(nextAt - ID_LENGTH, nextAt)
  },
}

const ID_BYTES = 12
const ID_LENGTH = 16
/** Every claim draws an id, and a call to the system's generator costs more than the claim's other parts together. */
const DRAWN_AT_ONCE = 128
let drawn = ''
let nextAt = 0
