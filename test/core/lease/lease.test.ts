import { expect, it } from 'vitest'
import { memoryDriver } from '../../../src/drivers/memory.ts'
import { DistributedLock, InvalidArgumentError } from '../../../src/index.ts'

it.each([0, Number.NaN, 366 * 24 * 3_600])(
  'Lease.extend(%s) rejects its own argument by name, and stays held',
  async (seconds) => {
    await using lock = new DistributedLock({ driver: memoryDriver() })
    const lease = await lock.hold('name')
    const failure = await lease.extend(seconds).catch((error: unknown) => error)
    expect(failure).toBeInstanceOf(InvalidArgumentError)
    expect(failure).toMatchObject({
      argument: 'seconds',
      value: seconds,
      message: expect.stringMatching(/^seconds must/),
    })
    expect(lease.held).toBe(true)
  },
)
