import { lockInfoFrom } from '../../core/lock-info.ts'
import { WebLocks } from '../../primitives/web-locks/web-locks.ts'
import type { MutexInstance, MutexSubject, Taken } from './mutex.ts'
import { deferred } from './timing.ts'

/**
 * An exclusive request as a mutex: the release of its handle ends the callback. The names need no escaping, so without
 * a prefix they are the lock names.
 */
export const webLocksSubject: MutexSubject = {
  name: 'LockManager.request',
  needs: [],
  open({ driver, ...options }): MutexInstance {
    const web = new WebLocks({ ...options, driver, prefix: '' })
    return {
      async take(lockName, { blocking = true } = {}) {
        const taken = deferred<Taken>()
        const ended = deferred()
        let held = true
        const request = web.locks
          .request(lockName, { ifAvailable: !blocking }, async (lock) => {
            if (lock === null) {
              const [lease] = (await driver.inspect({ lockName })).leases
              taken.resolve({ acquired: false, holder: lease && lockInfoFrom(lease) })
              return
            }
            const { signal, fencingToken } = lock
            const handle = {
              get held() {
                return held && !signal.aborted
              },
              signal,
              fencingToken,
              async release() {
                const wasHeld = this.held
                ended.resolve()
                await request
                return wasHeld
              },
            }
            taken.resolve({ acquired: true, handle })
            await ended.promise
          })
          .finally(() => {
            held = false
          })
          // After the handle exists this can only be a loss, which the handle has reported.
          .catch((error: unknown) => taken.reject(error))
        return taken.promise
      },
      close: () => web.close(),
    }
  },
}
