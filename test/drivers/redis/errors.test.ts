import { expect, test } from 'vitest'
import { storeErrorFrom } from '../../../src/drivers/redis/errors.ts'

test('commands that fail together share one error for each kind of command and server', () => {
  const [here, there] = [{ place: 'redis://here' }, { place: 'redis://there' }]
  const lost = new Error('read ECONNRESET')
  const first = storeErrorFrom('acquire', lost, here)
  expect(storeErrorFrom('acquire', lost, here)).toBe(first)
  expect(first.message).toMatch(/^redis failed to acquire.*redis:\/\/here/)
  expect(storeErrorFrom('release', lost, here).message).toMatch(/^redis failed to release.*redis:\/\/here/)
  expect(storeErrorFrom('acquire', lost, there).message).toMatch(/redis:\/\/there/)
  const again = new Error('read ECONNRESET')
  expect(storeErrorFrom('acquire', again, here)).not.toBe(first)
})
