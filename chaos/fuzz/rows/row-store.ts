import type { DistributedLock, Driver } from 'holdfast'
import type { Draw } from '../../draw.ts'
import type { Judge } from '../judge.ts'

/** A store in which others write what they like. */
export interface RowStore extends AsyncDisposable {
  readonly name: string
  /** The clients under test: one for each client package. */
  readonly clients: readonly RowClient[]
  /** As `holdfast ls` opens it. Undefined: it cannot show this store. */
  readonly url: string | undefined
  /** Writes odd keys or rows for this lock name. */
  write(draw: Draw, judge: Judge, lockName: string): Promise<Written>
}

export interface RowClient {
  readonly lock: DistributedLock
  readonly driver: Driver
}

export interface Written {
  /** Another client holds the lock for good: no claim may be granted, and none may fail. */
  readonly isHeldByOther?: boolean
  /** Ends it. */
  undo?(): Promise<void>
}

/** A lease and a waiter of a client that is not under test, so that there is something to change. */
export async function fill(draw: Draw, driver: Driver, lockName: string): Promise<void> {
  const terms = { lockName, holderId: 'a holder', permits: 1, ttlMs: 5_000, metadata: { n: 1 } }
  const isShared = draw.chance(0.5) && driver.capabilities.shared
  const mode = isShared ? ('shared' as const) : ('exclusive' as const)
  const limit = isShared && driver.capabilities.limit && draw.chance(0.5) ? { limit: 2 } : {}
  const claims = [0, 1, 2].map((at) => {
    const waits = at > 0 || draw.chance(0.2)
    return {
      ...terms,
      ...limit,
      mode: at === 2 ? ('exclusive' as const) : mode,
      claimId: `c${at}`,
      waiterTtlMs: waits ? 2_000 : 0,
    }
  })
  await driver.acquire(claims.slice(0, draw.whole(1, 3)), { secret: 'a secret' }).catch(() => {})
}
