import { appendFileSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { HistoryWriter, readHistory } from '../../chaos/history.ts'

let folder: string
let file: string

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'holdfast-history-'))
  file = join(folder, 'client')
})
afterEach(() => rmSync(folder, { recursive: true, force: true }))

const grant = { name: 'order', token: 5, ttlMs: 1_000, askedAt: 1, knownAt: 2 }

describe('a history', () => {
  test('has the time of the release, and the last time at which the lease was held', () => {
    const writer = new HistoryWriter(file)
    writer.claim()
    const lease = writer.grant({ ...grant, heldUntil: 2 })
    writer.held(0, lease, 3)
    writer.end(lease, 'released', 4)
    expect(readHistory(file, '0-1')).toMatchObject({
      claims: 1,
      leases: [{ ...grant, id: '0-1.1', heldUntil: 4, end: 'released' }],
    })
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
    writer.claim()
    appendFileSync(file, '["gra')
    expect(readHistory(file, '0-1')).toMatchObject({ claims: 1, leases: [] })
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
