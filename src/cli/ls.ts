import { parseArgs } from 'node:util'
import { checkUrl, chooseUrl, connect } from '../connect.ts'
import type { LeaseRecord, WaiterRecord } from '../core/driver.ts'
import { readPages } from '../core/pages.ts'
import { UsageError, usageErrorFrom } from './exit-codes.ts'

export async function main(args: readonly string[]): Promise<number> {
  const { url, prefix, json } = parse(args)
  const driver = await connect(url)
  try {
    const { leases, waiters } = await readPages((query) => driver.inspect(query), { prefix })
    process.stdout.write(json ? asJson(leases, waiters) : asTable(leases, waiters))
    return 0
  } finally {
    await driver.close()
  }
}

function parse(args: readonly string[]): { url: string; prefix: string; json: boolean } {
  try {
    const { values, positionals } = parseArgs({
      args: [...args],
      allowPositionals: true,
      options: { url: { type: 'string' }, json: { type: 'boolean' } },
    })
    if (positionals.length > 1) throw new UsageError('ls takes one prefix at the most')
    const url = chooseUrl(values.url)
    checkUrl(url)
    return { url, prefix: positionals[0] ?? '', json: values.json ?? false }
  } catch (error) {
    throw error instanceof TypeError ? usageErrorFrom(error) : error
  }
}

function asJson(leases: readonly LeaseRecord[], waiters: readonly WaiterRecord[]): string {
  const lines = [
    ...leases.map(({ acquiredAtMs, expiresAtMs, ...lease }) => ({
      state: 'holds',
      ...lease,
      acquiredAt: new Date(acquiredAtMs),
      ...(expiresAtMs !== undefined && { expiresAt: new Date(expiresAtMs) }),
    })),
    ...waiters.map(({ waitingSinceMs, ...waiter }) => ({
      state: 'waits',
      ...waiter,
      waitingSince: new Date(waitingSinceMs),
    })),
  ]
  return lines.map((line) => `${JSON.stringify(line)}\n`).join('')
}

function asTable(leases: readonly LeaseRecord[], waiters: readonly WaiterRecord[]): string {
  if (leases.length === 0 && waiters.length === 0) return 'nobody holds a lock\n'
  const rows = [
    ...leases.map((lease) => [
      lease.lockName,
      'holds',
      lease.mode,
      lease.holderId,
      time(lease.acquiredAtMs),
      lease.expiresAtMs === undefined ? 'with its session' : time(lease.expiresAtMs),
      String(lease.fencingToken),
    ]),
    ...waiters.map((waiter) => [
      waiter.lockName,
      'waits',
      waiter.mode,
      waiter.holderId,
      time(waiter.waitingSinceMs),
      '',
      '',
    ]),
  ].sort(([a = ''], [b = '']) => (a < b ? -1 : a > b ? 1 : 0))
  const table = [['LOCK', '', 'MODE', 'HOLDER', 'SINCE', 'EXPIRES', 'TOKEN'], ...rows]
  const widths = table.reduce<number[]>((most, row) => row.map((cell, i) => Math.max(most[i] ?? 0, cell.length)), [])
  return table
    .map(
      (row) =>
        `${row
          .map((cell, i) => cell.padEnd(widths[i] ?? 0))
          .join('  ')
          .trimEnd()}\n`,
    )
    .join('')
}

const time = (ms: number): string => new Date(ms).toISOString()
