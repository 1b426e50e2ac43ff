import { acquire, askAgain, expiry, handOff, release, renewal } from './basic.ts'
import { closing, election, force, giveUp } from './changes.ts'
import { besideHung, handOffBesideHung, withLocksBesideHung } from './hung.ts'
import type { Scene } from './scene.ts'
import { failover, refusedWrites, scriptsLost } from './servers.ts'
import { limited, shared, vote, withLocks } from './sharing.ts'

export const SCENES: readonly Scene[] = [
  acquire,
  askAgain,
  handOff,
  release,
  renewal,
  expiry,
  force,
  shared,
  limited,
  withLocks,
  election,
  vote,
  giveUp,
  closing,
  failover,
  scriptsLost,
  refusedWrites,
  besideHung,
  handOffBesideHung,
  withLocksBesideHung,
]
