import { randomUUID } from 'node:crypto'
import type { Claim, Driver, Grant } from '../../src/core/driver.ts'
import { openDatabase, type SqliteDatabase } from '../../src/drivers/sqlite/client.ts'
import { newCall } from '../../src/testing/conformance/driver-calls.ts'
import { makeFolder } from './folders.ts'

/** A folder for one test. All that is opened in it is closed with the test: `await using context = createContext()`. */
export interface SqliteContext extends AsyncDisposable {
  readonly folder: string
  /** The default path of the lock file. */
  readonly path: string
  opened(driver: Promise<Driver>): Promise<Driver>
  /** A connection without the driver, as of another program on the same file. */
  database(path?: string): Promise<SqliteDatabase>
}

export function createContext(): SqliteContext {
  const folder = makeFolder('sqlite')
  const path = `${folder.path}/locks.db`
  const ends: (() => unknown)[] = []
  return {
    folder: folder.path,
    path,
    async opened(opening) {
      const driver = await opening
      ends.push(() => driver.close())
      return driver
    },
    async database(other = path) {
      const database = await openDatabase(other)
      database.exec('PRAGMA busy_timeout = 5000')
      ends.push(() => database.close())
      return database
    },
    async [Symbol.asyncDispose]() {
      for (const end of ends.reverse()) await end()
      folder.remove()
    },
  }
}

export const claimOn = (lockName: string, changes: Partial<Claim> = {}): Claim => ({
  lockName,
  claimId: randomUUID(),
  holderId: 'a holder',
  mode: 'exclusive',
  permits: 1,
  ttlMs: 60_000,
  waiterTtlMs: 0,
  ...changes,
})

export async function grantOf(driver: Driver, claim: Claim): Promise<Grant> {
  const [answer] = await driver.acquire([claim], newCall())
  if (answer === undefined || answer instanceof Error || !answer.granted) {
    throw new Error(`"${claim.lockName}" was not granted: ${JSON.stringify(answer)}`)
  }
  return answer
}

export async function isGranted(driver: Driver, claim: Claim): Promise<boolean> {
  const [answer] = await driver.acquire([claim], newCall())
  if (answer instanceof Error) throw answer
  return answer?.granted === true
}

/** The rows of a statement as plain objects: each client has its own kind. */
export const rowsOf = (database: SqliteDatabase, sql: string): unknown[] =>
  database
    .prepare(sql)
    .all()
    .map((row) => ({ ...(row as object) }))
    .map(({ _metadata, ...row }: Record<string, unknown>) => row)
