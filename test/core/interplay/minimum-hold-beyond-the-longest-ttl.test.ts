import { expect, it } from 'vitest'
import type { Driver, RenewAnswer } from '../../../src/core/driver.ts'
import { InvalidArgumentError } from '../../../src/core/errors.ts'
import { DistributedLock } from '../../../src/index.ts'
import { setUp, watched } from './helper.ts'

it('minHoldSeconds beyond what the driver keeps is refused before anything is sent', async () => {
  const { time, driver: inner, other, settings } = setUp({ now: undefined })
  // As redlock does, with its default longestTtlSeconds.
  const driver: Driver = {
    ...inner,
    extensions: { ...inner.extensions, longestTtlMs: 60_000 },
    renew: async (renewals) => {
      const answers = await inner.renew(renewals.filter(({ ttlMs }) => ttlMs <= 60_000))
      let at = 0
      return renewals.map(({ ttlMs }) =>
        ttlMs <= 60_000
          ? (answers[at++] as RenewAnswer | Error)
          : new InvalidArgumentError('timeoutSeconds', ttlMs / 1_000, 'at most 60'),
      )
    },
  }
  const lock = new DistributedLock({ ...settings, driver })
  const call = watched(lock.withLock('cron', () => 'ran', { minHoldSeconds: 120 }))
  await time.run(50_000)
  const second = await other.acquire('cron')
  expect({ call: call.state === 'rejected' ? 'rejected' : call.value, second: second.acquired }).not.toEqual({
    call: 'ran',
    second: true,
  })
})
