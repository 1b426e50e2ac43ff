import { parseArgs } from 'node:util'
import { checkUrl, chooseUrl, connect, namesStore } from '../connect.ts'
import type { Driver, LeaseRecord, WaiterRecord } from '../core/driver.ts'
import { readPages } from '../core/pages.ts'
import { withoutSecrets } from '../core/secrets.ts'
import { checkedPage } from '../core/store-answers.ts'
import { UsageError, usageErrorFrom } from './exit-codes.ts'
import { printable, printableJson } from './text.ts'

export async function main(args: readonly string[]): Promise<number> {
  const { url, prefix, json } = parse(args)
  const driver = await connect(url)
  try {
    const { leases, waiters } = await readPages(
      async (query) => checkedPage(driver.name, await driver.inspect(query)),
      { prefix },
    )
    process.stdout.write(json ? asJson(leases, waiters) : asTable({ driver, leases, waiters, prefix }))
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
    if (positionals.length > 1) throw new UsageError(`ls takes at most one prefix, but got ${positionals.length}`)
    const [prefix = ''] = positionals
    // Without this check, `ls redis://…` would list the default store.
    if (prefix.includes('://') && namesStore(prefix)) throw new UsageError('pass the store with --url: ls --url URL')
    const url = chooseUrl(values.url)
    checkUrl(url)
    return { url, prefix, json: values.json ?? false }
  } catch (error) {
    throw error instanceof TypeError ? usageErrorFrom(error) : error
  }
}

function asJson(leases: readonly LeaseRecord[], waiters: readonly WaiterRecord[]): string {
  const lines = [
    ...leases.map(({ acquiredAtMs, expiresAtMs, ...lease }) => ({
      state: 'holds',
      ...lease,
      // Unknown for a lock that another library took.
      ...(acquiredAtMs > 0 && { acquiredAt: new Date(acquiredAtMs) }),
      ...(expiresAtMs !== undefined && { expiresAt: new Date(expiresAtMs) }),
    })),
    ...waiters.map(({ waitingSinceMs, ...waiter }) => ({
      state: 'waits',
      ...waiter,
      waitingSince: new Date(waitingSinceMs),
    })),
  ]
  return lines.map((line) => `${printableJson(line)}\n`).join('')
}

interface Found {
  readonly driver: Driver
  readonly leases: readonly LeaseRecord[]
  readonly waiters: readonly WaiterRecord[]
  readonly prefix: string
}

function asTable({ driver, leases, waiters, prefix }: Found): string {
  const filter = prefix === '' ? '' : ` whose names begin with "${printable(withoutSecrets(prefix))}"`
  if (leases.length === 0 && waiters.length === 0) return `no locks are held${filter}\n`
  const endless = driver.capabilities.expiry === 'session' ? 'with its session' : 'no expiry'
  const rows = [
    ...leases.map((lease) => [
      printable(lease.lockName),
      'holds',
      lease.mode,
      printable(lease.holderId),
      lease.acquiredAtMs > 0 ? time(lease.acquiredAtMs) : 'unknown',
      lease.expiresAtMs === undefined ? endless : time(lease.expiresAtMs),
      lease.fencingToken > 0 ? String(lease.fencingToken) : 'none',
    ]),
    ...waiters.map((waiter) => [
      printable(waiter.lockName),
      'waits',
      waiter.mode,
      printable(waiter.holderId),
      time(waiter.waitingSinceMs),
      '',
      '',
    ]),
  ].sort(([a = ''], [b = '']) => (a < b ? -1 : a > b ? 1 : 0))
  const table = [['LOCK', '', 'MODE', 'HOLDER', 'SINCE', 'EXPIRES', 'TOKEN'], ...rows]
  const widths = table.reduce<number[]>((most, row) => row.map((cell, i) => Math.max(most[i] ?? 0, cell.length)), [])
  const lines = table.map((row) =>
    row
      .map((cell, i) => cell.padEnd(widths[i] ?? 0))
      .join('  ')
      .trimEnd(),
  )
  if (filter !== '') lines.push('', `Only locks${filter} are shown.`)
  return `${lines.join('\n')}\n`
}

const time = (ms: number): string => new Date(ms).toISOString()
