import { type BigIntStats, readdirSync, type Stats, statSync } from 'node:fs'
import { StoreError } from '../../core/errors.ts'

/**
 * The database file and the two files beside it, as one connection has them open.
 *
 * SQLite finds the write-ahead log and its index by name, and a process that comes later opens the files that have
 * these names then. A lease excludes others only while the names lead to the files that this connection writes to.
 * Three or four `stat` calls of about 4 µs each check that.
 */
export class OpenFiles {
  readonly #database: OpenFile
  readonly #others: readonly OpenFile[]

  /**
   * Call it after SQLite has opened all of them, and before the first write. `asked` is the path that the caller wrote:
   * a link in it may lead to another file later. `hasIndex` is false for a database in exclusive locking mode.
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

  /** Throws if what is written now might be in a file that other processes do not read. */
  assertCurrent(): void {
    refuseLinks(this.#database.path, this.#database.assertCurrent())
    for (const file of this.#others) file.assertCurrent()
  }
}

/** A file was removed or replaced, or a link leads to another file, which other processes use. */
export class MovedError extends StoreError {
  constructor(path: string) {
    super(`the file ${path} was removed or replaced while it was open; close the database and open it again`)
  }
}

class StaleError extends StoreError {
  constructor(path: string) {
    super(
      `the file ${path} was removed or replaced while it was open, and this process still works on the old one; ` +
        'restart the process',
    )
  }
}

/** Throws for a file with several names: under another name it has another write-ahead log. */
export function refuseLinks(path: string, stats: Stats | BigIntStats | undefined): void {
  // The links of a folder are its subfolders.
  if (stats === undefined || stats.nlink <= 1 || !stats.isFile()) return
  throw new StoreError(
    `the lock file ${path} has ${stats.nlink} hard links: a process that opens it under another name does not see ` +
      'the same locks; remove the other links, or make them symbolic',
  )
}

/**
 * A path, and the file that it led to at first. While SQLite has the file open, its inode number is not given to
 * another file.
 */
class OpenFile {
  readonly path: string
  readonly #device: number | bigint
  readonly #number: number | bigint
  /** Some file systems have numbers above 2^53, which need BigInt. That takes twice as long. */
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

/** Only Linux lists the open files of a process. */
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
