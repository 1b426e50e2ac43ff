// Compiled by `npm run check`, never run: what the compiler must accept, and, on lines that expect an error, what it must refuse.
import type { Lease, LockInfo, LockResult } from 'holdfast'

export function narrows(result: LockResult): string {
  // @ts-expect-error nobody gets at the lease before asking whether there is one
  void result.lock
  // @ts-expect-error nor at the reason before asking whether there is one
  void result.error
  if (result.acquired) {
    const lease: Lease = result.lock
    // @ts-expect-error a lock that was acquired has no holder but us
    void result.holder
    return lease.lockName
  }
  const holder: LockInfo | undefined = result.holder
  // @ts-expect-error a refusal carries no lease
  void result.lock
  return holder?.holderId ?? result.error
}

export function isExhaustive(result: LockResult): string {
  switch (result.acquired) {
    case true:
      return result.lock.holderId
    case false:
      return result.error
  }
}
