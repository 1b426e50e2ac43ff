import type { AcquireAnswer, Claim, Driver, Grant, LeaseRef, RenewAnswer, Renewal } from '../../src/core/driver.ts'
import type { Clock, Instant } from '../../src/core/time/clock.ts'

/** Called for every entry of every call, before it is passed on and before its answer is passed back. */
export interface DriverObserver {
  /** The clock of `sent`, the time at which a call is passed on. */
  readonly clock: Clock
  calling?(): void
  acquiring?(claim: Claim, sent: Instant): void
  acquired?(claim: Claim, answer: AcquireAnswer | Error, sent: Instant): void
  renewing?(renewal: Renewal, sent: Instant): void
  renewed?(renewal: Renewal, answer: RenewAnswer | Error, sent: Instant): void
  releasing?(lease: LeaseRef, sent: Instant): void
  released?(lease: LeaseRef, answer: boolean | Error, sent: Instant): void
  /** The store granted a waiting claim by itself. */
  granted?(claimId: string, grant: Grant): void
}

/**
 * The same driver, observed. Next to the store an observer sees what was done; next to a process it sees what was sent
 * and what came back.
 */
export function observedDriver(inner: Driver, observer: DriverObserver): Driver {
  async function watched<Request, Answer>(
    requests: readonly Request[],
    call: (requests: readonly Request[]) => Promise<readonly (Answer | Error)[]>,
    asking: ((request: Request, sent: Instant) => void) | undefined,
    answered: ((request: Request, answer: Answer | Error, sent: Instant) => void) | undefined,
  ): Promise<readonly (Answer | Error)[]> {
    const sent = observer.clock.now()
    observer.calling?.()
    for (const request of requests) asking?.(request, sent)
    const answers = await call(requests).catch((error: Error) => error)
    requests.forEach((request, index) => {
      answered?.(request, answers instanceof Error ? answers : (answers[index] as Answer | Error), sent)
    })
    if (answers instanceof Error) throw answers
    return answers
  }

  const { listen } = inner
  return {
    ...inner,
    acquire: (claims, call) =>
      watched(claims, () => inner.acquire(claims, call), observer.acquiring, observer.acquired),
    renew: (renewals) => watched(renewals, inner.renew, observer.renewing, observer.renewed),
    release: (leases) => watched(leases, inner.release, observer.releasing, observer.released),
    ...(listen !== undefined && {
      listen(listener) {
        observer.calling?.()
        return listen({
          ...listener,
          granted(claimId, grant, isProvedBy) {
            observer.granted?.(claimId, grant)
            listener.granted(claimId, grant, isProvedBy)
          },
        })
      },
    }),
  }
}
