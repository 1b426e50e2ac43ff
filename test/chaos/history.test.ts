import { appendFileSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { readHistory } from '../../chaos/history.ts'
import { HistoryWriter } from '../../chaos/history-writer.ts'

let folder: string
let file: string

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'holdfast-history-'))
  file = join(folder, 'client')
})
afterEach(() => rmSync(folder, { recursive: true, force: true }))

const claim = { name: 'order', kind: 'lock', ttlMs: 1_000, askedAt: 1, waitMs: 500 } as const
const grant = { name: 'order', token: 5, ttlMs: 1_000, askedAt: 1, knownAt: 2 }

describe('a history', () => {
  test('has the time of the release, and the last time at which the lease was held', () => {
    const writer = new HistoryWriter(file)
    const number = writer.claim(claim)
    const lease = writer.grant({ ...grant, claim: number, heldUntil: 2 })
    writer.held(0, lease, 3)
    writer.end(lease, 'released', 4)
    writer.released(lease, 5, true)
    expect(readHistory(file, '0-1').leases).toEqual([
      { ...grant, id: '0-1.1', claim: '0-1.1', heldUntil: 4, end: 'released', releasedAt: 5, released: true },
    ])
  })

  test('of a process that was killed ends with the last check of each lease', () => {
    const writer = new HistoryWriter(file)
    const [first, second] = [
      writer.grant({ ...grant, heldUntil: 2 }),
      writer.grant({ ...grant, token: 6, heldUntil: 2 }),
    ]
    writer.held(0, first, 10)
    writer.held(3, second, 11)
    writer.held(0, first, 12)
    expect(readHistory(file, '0-1').leases).toMatchObject([
      { id: '0-1.1', heldUntil: 12, end: 'killed' },
      { id: '0-1.2', heldUntil: 11, end: 'killed' },
    ])
  })

  test('of a process that was killed right after a grant ends there', () => {
    const writer = new HistoryWriter(file)
    const earlier = writer.grant({ ...grant, heldUntil: 2 })
    writer.held(0, earlier, 3)
    writer.end(earlier, 'released', 3)
    writer.grant({ ...grant, token: 6, heldUntil: 4 })
    expect(readHistory(file, '0-1').leases[1]).toMatchObject({ heldUntil: 4, end: 'killed' })
  })

  test('has a lease that was never seen held', () => {
    const writer = new HistoryWriter(file)
    writer.end(writer.grant(grant), 'lost', undefined)
    const [lease] = readHistory(file, '0-1').leases
    expect(lease).toMatchObject({ end: 'lost' })
    expect(lease).not.toHaveProperty('heldUntil')
  })

  test('leaves out the half line of a process that was killed while it wrote', () => {
    const writer = new HistoryWriter(file)
    writer.claim(claim)
    appendFileSync(file, '["gra')
    expect(readHistory(file, '0-1')).toMatchObject({ claims: [claim], leases: [] })
  })

  test('has claims with their waiting, their abort and their answer', () => {
    const writer = new HistoryWriter(file)
    const [granted, failed] = [writer.claim(claim), writer.claim({ ...claim, mode: 'shared', limit: 3, permits: 2 })]
    writer.claim(claim)
    writer.waiting(granted, 5)
    writer.abort(failed, 6)
    writer.answer(failed, 7, 'failed', 'STORE_UNAVAILABLE')
    writer.answer(granted, 8, 'granted')
    expect(readHistory(file, '2-1').claims).toEqual([
      { ...claim, id: '2-1.1', waitingAt: 5, answeredAt: 8, outcome: 'granted' },
      {
        ...claim,
        id: '2-1.2',
        mode: 'shared',
        limit: 3,
        permits: 2,
        abortedAt: 6,
        answeredAt: 7,
        outcome: 'failed',
        code: 'STORE_UNAVAILABLE',
      },
      { ...claim, id: '2-1.3' },
    ])
  })

  test('has losses, rate steps, stalls, memory, and the last time at which the process ran', () => {
    const writer = new HistoryWriter(file)
    const loss = { signalledAt: 9, deadlineAt: 10, ticksLate: 0, isBySignal: true }
    const rate = {
      name: 'api',
      cost: 1,
      limit: 10,
      periodMs: 1_000,
      burst: 5,
      askedAt: 1,
      answeredAt: 2,
      allowed: true,
    }
    const lease = writer.grant(grant)
    writer.loss(lease, loss)
    writer.rate(rate)
    writer.stall({ fromMs: 3, toMs: 90 })
    writer.memory({ atMs: 4, rssBytes: 5, heapBytes: 6 })
    writer.alive(90)
    writer.alive(100)
    expect(readHistory(file, '0-1')).toMatchObject({
      leases: [{ loss }],
      rates: [rate],
      stalls: [{ fromMs: 3, toMs: 90 }],
      memory: [{ atMs: 4, rssBytes: 5, heapBytes: 6 }],
      aliveAt: 100,
    })
  })

  test('counts errors by method and code, and keeps the text of unexpected ones', () => {
    const writer = new HistoryWriter(file)
    writer.error('acquire', 'STORE_UNAVAILABLE')
    writer.error('acquire', 'STORE_UNAVAILABLE')
    writer.error('release', 'none', 'release: TypeError: no')
    expect(readHistory(file, '0-1')).toMatchObject({
      errors: { 'acquire STORE_UNAVAILABLE': 2, 'release none': 1 },
      unexpected: ['release: TypeError: no'],
    })
  })

  test('of a process that never started is empty', () => {
    expect(readHistory(join(folder, 'missing'), '0-1').leases).toEqual([])
  })
})
