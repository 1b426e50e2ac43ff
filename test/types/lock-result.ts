// The files of this folder are compiled by `npm run check`, but never run. The compiler must accept them, and must find
// an error in each line that expects one.
import type { Lease, LockInfo, LockResult } from 'holdfast'

export function narrows(result: LockResult): string {
  // @ts-expect-error the lease is accessible only after a check of `acquired`
  void result.lock
  // @ts-expect-error the same for the error
  void result.error
  if (result.acquired) {
    const lease: Lease = result.lock
    // @ts-expect-error an acquired lock has no other holder
    void result.holder
    return lease.lockName
  }
  const holder: LockInfo | undefined = result.holder
  // @ts-expect-error a refusal has no lease
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
