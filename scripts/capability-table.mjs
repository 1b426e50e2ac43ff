// @ts-check
// Writes a table of the capabilities of each driver between the marks in the files below.
//
//   node scripts/capability-table.mjs           writes the tables
//   node scripts/capability-table.mjs --check   fails if they are out of date
import { readFileSync, writeFileSync } from 'node:fs'
import { isMain, root } from './support/command.mjs'
import { publicEntries } from './support/entries.mjs'

/** The files with a table, and the path from there to the drivers' pages. */
const places = [
  { file: 'README.md', pages: 'docs/drivers/', short: true },
  { file: 'docs/drivers/README.md', pages: '', short: false },
]

/** @typedef {import('../src/core/driver.ts').Capabilities} Capabilities */

/** @type {[title: string, cell: (capabilities: Capabilities) => string][]} */
const columns = [
  [
    'excludes',
    ({ scope }) =>
      ({ process: 'the tasks of one process', machine: 'the processes of one machine', network: 'machines' })[scope],
  ],
  ['a lease ends', ({ expiry }) => ({ ttl: 'with its time to live', session: 'with its connection' })[expiry]],
  ['fencing tokens', ({ fencing }) => yesOrNo(fencing)],
  ['shared', ({ shared }) => yesOrNo(shared)],
  ['limits', ({ limit }) => yesOrNo(limit)],
  ['first come, first served', ({ queue }) => yesOrNo(queue)],
  ['wakes waiters', ({ wake }) => yesOrNo(wake)],
  ['metadata', ({ metadata }) => yesOrNo(metadata)],
  ['rate limits', ({ rate }) => yesOrNo(rate)],
  ['forced release', ({ force }) => yesOrNo(force !== false)],
  ['several names in one step', ({ groups }) => yesOrNo(groups)],
]

/** Which primitives a driver supports. @type {[primitive: string, cell: (capabilities: Capabilities) => string][]} */
const primitives = [
  ['`DistributedLock`', () => 'yes'],
  ['`ReadWriteLock`', ({ shared }) => yesOrNo(shared)],
  ['`Semaphore`', ({ limit }) => yesOrNo(limit)],
  ['`LeaderElection`', ({ metadata }) => (metadata ? 'yes' : 'yes, without a published value')],
  ['`OnceOnly`', ({ expiry, metadata }) => yesOrNo(expiry === 'ttl' && metadata)],
  ['`RateLimiter`', ({ rate }) => yesOrNo(rate)],
  ['Web Locks', ({ force }) => (force === 'claim' ? 'yes' : 'yes, without `steal`')],
]

/**
 * The files whose table is out of date, with the text that they should have.
 *
 * @returns {Promise<{ file: string, text: string }[]>}
 */
export async function staleTables() {
  const drivers = await driverCapabilities()
  return places.flatMap(({ file, pages, short }) => {
    const before = readFileSync(`${root}${file}`, 'utf8')
    const parts = /^([\s\S]*<!-- capabilities:begin -->\n)[\s\S]*?(<!-- capabilities:end -->[\s\S]*)$/.exec(before)
    if (parts === null) throw new Error(`${file} has no marks for the table of capabilities`)
    const text = `${parts[1]}${short ? primitiveTable(drivers, pages) : tables(drivers, pages)}${parts[2]}`
    return text === before ? [] : [{ file, text }]
  })
}

/** @returns {Promise<{ name: string, capabilities: Capabilities }[]>} */
async function driverCapabilities() {
  const entries = publicEntries().filter(({ name }) => name.includes('/drivers/'))
  return Promise.all(
    entries.map(async ({ name, types }) => {
      const { capabilities } = await import(`${root}${types.replace(/\.d\.ts$/, '.js')}`)
      if (capabilities === undefined) throw new Error(`${name} does not export its capabilities`)
      return { name: name.replace(/^.*\/drivers\//, ''), capabilities }
    }),
  )
}

/**
 * @param {readonly { name: string, capabilities: Capabilities }[]} drivers
 * @param {string} pages
 */
function tables(drivers, pages) {
  const byDriver = [
    ['driver', ...columns.map(([title]) => title)],
    ...drivers.map(({ name, capabilities }) => [linked(name, pages), ...columns.map(([, cell]) => cell(capabilities))]),
  ]
  return `${rendered(byDriver)}\n${primitiveTable(drivers, pages)}`
}

/**
 * @param {readonly { name: string, capabilities: Capabilities }[]} drivers
 * @param {string} pages
 */
const primitiveTable = (drivers, pages) =>
  rendered([
    ['', ...drivers.map(({ name }) => linked(name, pages))],
    ...primitives.map(([title, cell]) => [title, ...drivers.map(({ capabilities }) => cell(capabilities))]),
  ])

/** @param {string} name @param {string} pages */
const linked = (name, pages) => `[\`${name}\`](${pages}${name}.md)`

/** @param {string[][]} rows the first is the head */
function rendered([head = [], ...rows]) {
  return [head, head.map(() => '---'), ...rows].map((row) => `| ${row.join(' | ')} |\n`).join('')
}

/** @param {boolean} can */
function yesOrNo(can) {
  return can ? 'yes' : 'no'
}

if (isMain(import.meta.url)) {
  const stale = await staleTables()
  if (process.argv.includes('--check')) {
    for (const { file } of stale)
      console.error(`${file}: the table of capabilities is out of date: npm run capabilities`)
    process.exitCode = stale.length === 0 ? 0 : 1
  } else {
    for (const { file, text } of stale) writeFileSync(`${root}${file}`, text)
  }
}
