import { randomBytes } from 'node:crypto'

/** The source of randomness. It is passed in, so that a test can replay a run from its seed. */
export interface Random {
  /** A number of at least 0 and less than 1, for jitter. */
  fraction(): number
  /**
   * A new id of 96 random bits: 16 characters of the base64url alphabet. It must be unpredictable for other clients.
   */
  id(): string
}

/** `Math.random` for fractions, and the cryptographic generator of Node for ids. */
export const systemRandom: Random = {
  fraction: () => Math.random(),
  id: () => {
    if (nextAt >= drawn.length) {
      drawn = randomBytes(ID_BYTES * IDS_PER_DRAW).toString('base64url')
      nextAt = 0
    }
    nextAt += ID_LENGTH
    return drawn.slice(nextAt - ID_LENGTH, nextAt)
  },
}

const ID_BYTES = 12
const ID_LENGTH = 16
/** Every claim needs an id, and a call to the generator costs more than the rest of the claim. */
const IDS_PER_DRAW = 128
let drawn = ''
let nextAt = 0
