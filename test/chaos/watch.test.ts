import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, expect, test } from 'vitest'
import { nowMs, readHistory } from '../../chaos/history.ts'
import { HistoryWriter } from '../../chaos/history-writer.ts'
import { Watch } from '../../chaos/watch.ts'

const folder = mkdtempSync(join(tmpdir(), 'watch-'))
afterAll(() => rmSync(folder, { recursive: true, force: true }))

/** How late the signal of a lease was, whose holder looks at it in turns that began so long after its deadline. */
async function ticksLate(turnsMs: readonly number[]): Promise<number | undefined> {
  const file = join(folder, `${turnsMs}`)
  const history = new HistoryWriter(file)
  const over = new AbortController()
  const lease = { fencingToken: 1, held: true, remainingSeconds: 0.001, signal: over.signal, release: async () => true }
  const askedAt = nowMs()
  const grant = { name: 'a', token: 1, ttlMs: 1, askedAt, knownAt: askedAt, heldUntil: askedAt }
  const watch = new Watch(history, 0, lease, grant, true)
  const deadlineMs = nowMs() + 1
  while (nowMs() <= deadlineMs + 100);
  for (const afterMs of turnsMs) watch.tick(deadlineMs + afterMs)
  over.abort()
  await watch.release(String)
  history.close()
  return readHistory(file, '0-1').leases[0]?.loss?.ticksLate
}

test('a signal is late by the turns that began after the deadline, not by one that stalled over it', async () => {
  expect(await ticksLate([-20, -10, 60])).toBe(1)
  expect(await ticksLate([-10, 20, 60])).toBe(2)
  // After a stall, an interval may run twice in one turn.
  expect(await ticksLate([-10, 60, 61])).toBe(1)
})
