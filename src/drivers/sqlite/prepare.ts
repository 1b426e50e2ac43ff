import { StoreError } from '../../core/errors.ts'
import type { Clock } from '../../core/time/clock.ts'
import { readProtocol } from '../shared/read-protocol.ts'
import { untilFree } from './busy.ts'
import { isBusy, isInTransaction } from './errors.ts'
import { refusePlace } from './file.ts'
import { type DatabaseSource, OpenDatabase } from './open-database.ts'
import { statements } from './statements.ts'

/** Opens a database, and makes its tables if there are none. Throws a `StoreError` for a file that must not be used. */
export async function openAndPrepare(source: DatabaseSource, clock: Clock): Promise<OpenDatabase> {
  const passedIn = 'passedIn' in source
  const database = passedIn ? source.passedIn : await source.open()
  try {
    const opened = new OpenDatabase(database, source)
    refusePlace(opened.path)
    await prepare(opened, clock)
    return opened
  } catch (error) {
    if (!passedIn) database.close()
    throw error
  }
}

/**
 * No flush for every commit: when a machine crashes, all holders of its locks die with it. And a write-ahead log that
 * grew because of a long transaction of another program is cut to its usual size again.
 */
const SETTINGS = `PRAGMA synchronous = NORMAL; PRAGMA journal_size_limit = ${4 * 1_024 * 1_024}`

/**
 * Creates our tables, or finds them. A database that was passed in has its own tables and settings, which are not
 * changed.
 */
async function prepare(opened: OpenDatabase, clock: Clock): Promise<void> {
  const isReady = await untilFree(
    clock,
    opened.path,
    () => {
      if (!opened.passedIn) opened.exec('PRAGMA busy_timeout = 0')
      // In one transaction: otherwise tables that another process is creating would look like another program's.
      const ready = opened.transaction('BEGIN', () => isComplete(opened))
      const [mode] = opened.withoutBlocking(() => opened.rows('PRAGMA journal_mode = WAL'))
      if (mode?.['journal_mode'] !== 'wal') {
        throw new StoreError(
          `the database ${opened.path} cannot be put into WAL mode: it stays in mode ${mode?.['journal_mode']}. ` +
            'Is a transaction open on it?',
        )
      }
      if (!opened.passedIn) opened.exec(SETTINGS)
      // The first read in this mode opens the files beside the database.
      opened.rows(statements.format_table)
      opened.watchFiles()
      return ready
    },
    { mayPass: (error) => isBusy(error) || (!opened.passedIn && isInTransaction(error)) },
  )
  if (isReady) return
  await untilFree(clock, opened.path, () =>
    opened.transaction('BEGIN IMMEDIATE', () => {
      // Another process may have been faster, with a newer version.
      const version = formatOf(opened)
      if (isComplete(opened)) return
      if (version === 1) opened.exec(readProtocol('sqlite/upgrade-2.sql'))
      if (version === 2) opened.exec(readProtocol('sqlite/upgrade-3.sql'))
      opened.exec(readProtocol('sqlite/schema.sql'))
      if (!opened.passedIn) opened.exec(`PRAGMA application_id = ${APPLICATION_ID}`)
    }),
  )
}

/** Whether nothing has to be created. The last table was added without a new version. */
const isComplete = (opened: OpenDatabase): boolean =>
  formatOf(opened) === FORMAT && opened.rows(statements.stolen_table).length > 0

/** The version of the tables. Undefined if there are none and they may be created. Throws if the file is not ours. */
function formatOf(opened: OpenDatabase): number | undefined {
  const { path, passedIn } = opened
  if (opened.rows(statements.format_table).length > 0) {
    const version = Number(opened.rows(statements.format)[0]?.['version'] ?? 0)
    if (version <= FORMAT) return version
    throw new StoreError(
      `the lock file ${path} has format ${version}, and this version of Holdfast knows ${FORMAT}; upgrade Holdfast`,
      { retryable: false },
    )
  }
  const [{ application_id: id } = { application_id: 0 }] = opened.rows('PRAGMA application_id')
  const tables = opened.rows("SELECT name FROM sqlite_master WHERE type = 'table' LIMIT 1")
  if (!passedIn && id !== APPLICATION_ID && (id !== 0 || tables.length > 0)) {
    throw new StoreError(`the file ${path} is a database of another program; choose another path for the locks`, {
      retryable: false,
    })
  }
  return undefined
}

/** `HOLD`, in the file's header. It tells a file of ours from a database of another program. */
const APPLICATION_ID = 0x484f4c44
const FORMAT = 3
