import { acquire, expiry, handOff, release, renewal } from './basic.ts'
import { closing, election, failover, giveUp, scriptsLost, steal } from './changes.ts'
import type { Scene } from './scene.ts'
import { limited, shared, vote, withLocks } from './sharing.ts'

export const SCENES: readonly Scene[] = [
  acquire,
  handOff,
  release,
  renewal,
  expiry,
  steal,
  shared,
  limited,
  withLocks,
  election,
  vote,
  giveUp,
  closing,
  failover,
  scriptsLost,
]
