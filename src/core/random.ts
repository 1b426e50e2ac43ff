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
  id: () => randomBytes(12).toString('base64url'),
}
