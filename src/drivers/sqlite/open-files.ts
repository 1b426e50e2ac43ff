import { type BigIntStats, readdirSync, type Stats, statSync } from 'node:fs'
import { StoreError } from '../../core/errors.ts'

/**
 * The database's file and the two beside it, as one connection has them open.
 *
 * SQLite finds the write-ahead log and its index by name, and a process that comes later opens what has these names
 * then. A lease is worth something only while the names lead to what this connection writes to. Three or four `stat`
 * calls tell, in about 4 µs each.
 */
export class OpenFiles {
  readonly #database: OpenFile
  readonly #others: readonly OpenFile[]

  /**
   * Call it when SQLite has opened all of them, and before the first write. `asked` is the path that was asked for: a
   * link in it may lead to another file later. `hasIndex` is false for a database that one connection has to itself.
   *
   * Throws if SQLite works on a file that was removed. Connections of one process share their index, so a new
   * connection gets the removed one as long as an old connection is open.
   */
  constructor(path: string, { asked = path, hasIndex = true } = {}) {
    this.#database = new OpenFile(path)
    const beside = (hasIndex ? ['-wal', '-shm'] : ['-wal']).map((suffix) => new OpenFile(`${path}${suffix}`))
    this.#others = asked === path ? beside : [...beside, this.#database.under(asked)]
    this.assertCurrent()
    assertOpen([this.#database, ...beside])
  }

  /** Throws if what is written now might be in a file that others do not read. */
  assertCurrent(): void {
    refuseLinks(this.#database.path, this.#database.assertCurrent())
    for (const file of this.#others) file.assertCurrent()
  }
}

/** A file was removed or replaced, or a link leads to another one: others go on there. */
export class MovedError extends StoreError {
  constructor(path: string) {
    super(`the file ${path} was removed or replaced while it was open; close the database and open it again`)
  }
}

class StaleError extends StoreError {
  constructor(path: string) {
    super(
      `the file ${path} was removed or replaced while it was open, and this process still works on the old one; end the process and start it again`,
    )
  }
}

/** Under another name the same file has another write-ahead log. */
export function refuseLinks(path: string, stats: Stats | BigIntStats | undefined): void {
  // Of a folder they are its own folders.
  if (stats === undefined || stats.nlink <= 1 || !stats.isFile()) return
  throw new StoreError(
    `the lock file ${path} has ${stats.nlink} hard links: a process that opens it under another name does not see the same locks; remove the other links, or make them symbolic`,
  )
}

/**
 * A path, and which file it led to at first. SQLite's open handle keeps the file's number from being given to another
 * file.
 */
class OpenFile {
  readonly path: string
  readonly #device: number | bigint
  readonly #number: number | bigint
  /** Only this form tells numbers above 2^53 apart, which some file systems have. It takes twice as long. */
  readonly #bigint: boolean

  constructor(path: string, first: BigIntStats | undefined = statSync(path, { throwIfNoEntry: false, bigint: true })) {
    if (first === undefined) throw new MovedError(path)
    const { dev, ino } = first
    this.path = path
    this.#bigint = dev > Number.MAX_SAFE_INTEGER || ino > Number.MAX_SAFE_INTEGER
    this.#device = this.#bigint ? dev : Number(dev)
    this.#number = this.#bigint ? ino : Number(ino)
  }

  get identity(): string {
    return `${this.#device}:${this.#number}`
  }

  /** The same file under another name. */
  under(path: string): OpenFile {
    return new OpenFile(path, statSync(this.path, { bigint: true }))
  }

  assertCurrent(): Stats | BigIntStats {
    const stats = statSync(this.path, { throwIfNoEntry: false, bigint: this.#bigint })
    if (stats?.ino !== this.#number || stats.dev !== this.#device) throw new MovedError(this.path)
    return stats
  }
}

/** Only Linux tells what a process has open. */
function assertOpen(files: readonly OpenFile[]): void {
  if (process.platform !== 'linux') return
  const open = new Set(
    readdirSync('/proc/self/fd').map((descriptor) => {
      const stats = statSync(`/proc/self/fd/${descriptor}`, { throwIfNoEntry: false, bigint: true })
      return stats && `${stats.dev}:${stats.ino}`
    }),
  )
  for (const { path, identity } of files) if (!open.has(identity)) throw new StaleError(path)
}
