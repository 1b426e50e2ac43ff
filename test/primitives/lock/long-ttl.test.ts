import assert from 'node:assert/strict'
import { it, vi } from 'vitest'
import { DistributedLock } from '../../../src/index.ts'

it('a timeoutSeconds of more than an hour warns once, unless the instance expects it', async () => {
  const warn = vi.spyOn(process, 'emitWarning').mockReturnValue()
  const said = () =>
    warn.mock.calls.filter(([, options]) => (options as { code?: string }).code === 'HOLDFAST_LONG_TTL')
  const url = 'memory:long-ttl'
  await using patient = new DistributedLock({ url, warnAboveSeconds: 86_400 })
  await using lock = new DistributedLock({ url })
  await patient.withLock('a', async () => {}, { timeoutSeconds: 30_000 })
  await lock.withLock('b', async () => {}, { timeoutSeconds: 3_600 })
  assert.equal(said().length, 0)
  await lock.withLocks(['c', 'd'], async () => {}, { timeoutSeconds: 30_000 })
  await lock.withLock('e', async () => {}, { timeoutSeconds: 30_000 })
  assert.equal(said().length, 1)
  assert.match(
    String(said()[0]?.[0]),
    /"c" has a timeoutSeconds of 30000: .* held for 8\.3 hours\. Is that .*milliseconds/,
  )
  warn.mockRestore()
})
