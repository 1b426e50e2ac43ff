import type { Claim, Driver, DriverListener, Grant } from '../../src/core/driver.ts'
import type { Model } from './model.ts'

export interface Observing {
  readonly model: Model
  readonly nowMs: () => number
  /** The way of a message to the store or back. */
  readonly trip: () => Promise<void>
  /** The way of a message that the store sends by itself. */
  readonly send: (message: () => void) => void
}

/** A driver that shows the model what the store does. */
export function observed(inner: Driver, { model, nowMs, trip, send }: Observing): Driver {
  const asked = new Map<string, { readonly claim: Claim; readonly sentMs: number; readonly after: number }>()

  function granted(claimId: string, { fencingToken, ttlMs }: Grant): void {
    const request = asked.get(claimId)
    if (request === undefined) return
    const { claim, sentMs, after } = request
    const { lockName, mode } = claim
    model.granted({ lockName, fencingToken, claimId, exclusive: mode === 'exclusive', ttlMs, sentMs, after })
  }

  const told = (listener: DriverListener): DriverListener => ({
    wake: (...message) => send(() => listener.wake(...message)),
    granted: (...message) => {
      const [claimId, grant] = message
      granted(claimId, grant)
      send(() => listener.granted(...message))
    },
    lost: (...message) => send(() => listener.lost(...message)),
    disconnected: (...message) => listener.disconnected(...message),
  })
  const { listen } = inner

  return {
    ...inner,
    async acquire(...call) {
      const [claims] = call
      for (const claim of claims) {
        asked.set(claim.claimId, { claim, sentMs: nowMs(), after: model.lastToken(claim.lockName) })
      }
      await trip()
      const answers = await inner.acquire(...call)
      answers.forEach((answer, at) => {
        const { claimId } = claims[at] as Claim
        if (!(answer instanceof Error) && answer.granted) granted(claimId, answer)
      })
      await trip()
      return answers
    },
    async renew(renewals) {
      const sent = renewals.map((renewal) => model.renewing(renewal, renewal.ttlMs))
      await trip()
      const answers = await inner.renew(renewals)
      renewals.forEach((_, at) => {
        if (answers[at] === 'renewed') sent[at]?.done()
      })
      await trip()
      answers.forEach((answer, at) => {
        sent[at]?.answered(answer === 'renewed')
      })
      return answers
    },
    async release(leases) {
      await trip()
      const answers = await inner.release(leases)
      leases.forEach((lease, at) => {
        if (answers[at] === true) model.released(lease)
      })
      await trip()
      return answers
    },
    async inspect(query) {
      await trip()
      const page = await inner.inspect(query)
      await trip()
      return page
    },
    ...(listen && { listen: (listener: DriverListener) => listen(told(listener)) }),
  }
}
