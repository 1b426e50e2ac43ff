import { closeSync, existsSync, openSync, rmSync, statSync, truncateSync, writeFileSync, writeSync } from 'node:fs'
import { openDatabase } from '../../../src/drivers/sqlite/client.ts'
import { type Folder, makeFolder } from '../../../test/harness/folders.ts'
import type { Draw } from '../../draw.ts'
import type { Library } from '../../wire/library.ts'
import type { Judge } from '../judge.ts'
import { oddBytes, oddText } from '../odd.ts'
import { fill, type RowStore } from './row-store.ts'

/** A new file. Its rows have values of any type, or the file itself is damaged: each case has its own. */
export async function openSqliteRows(library: Library, draw: Draw): Promise<RowStore> {
  const folder = makeFolder('fuzz')
  const path = `${folder.path}/locks.db`
  const driver = await library.connect(`sqlite:${path}`)
  const lock = new library.DistributedLock({ driver, callTimeoutSeconds: 3 })
  return {
    name: 'sqlite',
    clients: [{ driver, lock }],
    url: `sqlite:${path}`,
    async write(_, judge, lockName) {
      await driver.inspect({})
      if (draw.chance(0.7)) await fill(draw, driver, lockName)
      if (draw.chance(0.75)) await writeRows(draw, judge, path, lockName)
      else damage(draw, judge, path)
      return {}
    },
    [Symbol.asyncDispose]: () => end(lock, driver, folder),
  }
}

async function end(
  lock: { close(): Promise<void> },
  driver: { close(): Promise<void> },
  folder: Folder,
): Promise<void> {
  await Promise.allSettled([lock.close()])
  await Promise.allSettled([driver.close()])
  folder.remove()
}

async function writeRows(draw: Draw, judge: Judge, path: string, lockName: string): Promise<void> {
  const database = await openDatabase(path)
  try {
    database.exec('PRAGMA busy_timeout = 2000')
    // Another program may have switched off what the schema checks.
    database.exec('PRAGMA ignore_check_constraints = ON')
    for (let count = draw.whole(1, 4); count > 0; count -= 1) {
      const sql = statement(draw, lockName)
      judge.note(sql)
      try {
        database.exec(sql)
      } catch (error) {
        judge.note(`(${(error as Error).message})`)
      }
    }
  } finally {
    database.close()
  }
}

function statement(draw: Draw, lockName: string): string {
  const table = draw.weighted([
    ['holdfast_leases', 4],
    ['holdfast_waiters', 4],
    ['holdfast_rates', 2],
    ['holdfast_counter', 1],
    ['holdfast_format', 1],
  ] as const)
  const columns = COLUMNS[table]
  const name = `'${lockName}'`
  if (table === 'holdfast_counter' || table === 'holdfast_format') {
    return draw.chance(0.2) ? `DELETE FROM ${table}` : `UPDATE ${table} SET ${columns[0]} = ${oddValueOf(draw)}`
  }
  const key = table === 'holdfast_rates' ? 'name' : 'lock_name'
  if (draw.chance(0.6)) {
    const sets = draw.some(columns, draw.whole(1, 3)).map((column) => `${column} = ${oddValueOf(draw)}`)
    return `UPDATE ${table} SET ${sets.join(', ')} WHERE ${key} = ${name}`
  }
  const values = columns.map(() => oddValueOf(draw))
  return `INSERT OR REPLACE INTO ${table} (${key}, ${columns.join(', ')}) VALUES (${name}, ${values.join(', ')})`
}

const COLUMNS = {
  holdfast_leases: [
    ...['claim_id', 'holder_id', 'mode', 'max_permits', 'permits', 'fencing_token', 'acquired_at_ms', 'expires_at_ms'],
    ...['metadata', 'ttl_ms'],
  ],
  holdfast_waiters: [
    ...[
      'claim_id',
      'holder_id',
      'mode',
      'max_permits',
      'permits',
      'waiting_since_ms',
      'expires_at_ms',
      'wait_ms',
      'place',
    ],
  ],
  holdfast_rates: ['limit_id', 'reset_at_ms', 'block'],
  holdfast_counter: ['last_token'],
  holdfast_format: ['version'],
} as const

/** SQLite keeps a value of any type in a column of any type. */
function oddValueOf(draw: Draw): string {
  if (draw.chance(0.3))
    return draw.one(['9e999', '-9e999', '9223372036854775807', '-1', '0', '1.5', '9007199254740993'])
  if (draw.chance(0.2)) return draw.one(['NULL', "x'00ff'", "'exclusive'", "'shared'", '3000000000000', "'c0'", "'c1'"])
  if (draw.chance(0.2)) return `'5/1000000/5'`
  return `'${oddText(draw, '{"n":1}').replaceAll("'", "''").replaceAll('\0', '')}'`
}

const KINDS = ['overwritten', 'removed', 'cut', 'replaced'] as const

function damage(draw: Draw, judge: Judge, path: string): void {
  const file = draw.one([path, path, `${path}-wal`, `${path}-shm`])
  if (!existsSync(file)) return
  const { size } = statSync(file)
  // The shared memory is mapped: a process that reads beyond its end is killed by the system, in any program.
  const kinds = file.endsWith('-shm') ? KINDS.slice(0, 2) : KINDS
  const kind = draw.one(kinds)
  judge.note(`${file.slice(file.lastIndexOf('/') + 1)} is ${kind}`)
  if (kind === 'cut') truncateSync(file, draw.whole(0, size))
  else if (kind === 'replaced') writeFileSync(file, oddBytes(draw, 5_000))
  else if (kind === 'removed') rmSync(file)
  else {
    const descriptor = openSync(file, 'r+')
    for (let count = draw.whole(1, 20); count > 0; count -= 1) {
      writeSync(descriptor, oddBytes(draw, 64), 0, undefined, draw.whole(0, Math.max(0, size - 1)))
    }
    closeSync(descriptor)
  }
}
