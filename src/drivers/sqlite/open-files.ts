import { type BigIntStats, type Stats, statSync } from 'node:fs'
import type { Clock } from '../../core/time/clock.ts'
import { identityOf, MovedError, refuseLinks } from './file.ts'
import { watchDescriptors } from './one-copy.ts'

/**
 * Returns a function that throws if what is written now might be in a file that other processes do not read, or if
 * other processes are not excluded from it.
 *
 * SQLite finds the write-ahead log and its index by name, and a process that comes later opens the files that have
 * these names then. A lease excludes others only while the names lead to the files that this connection writes to.
 * Three or four `stat` calls of about 4 µs each check that.
 *
 * Call it after SQLite has opened all of them, and before the first write. `asked` is the path that the caller wrote: a
 * link in it may lead to another file later.
 *
 * Throws if SQLite works on a file that was removed. Connections of one process share their index, so a new connection
 * gets the removed one as long as an old connection is open.
 */
export function watchFiles(path: string, asked: string, clock: Clock): () => void {
  const [database, log, index] = [openFile(path), openFile(`${path}-wal`), openFile(`${path}-shm`)]
  const others = asked === path ? [log, index] : [log, index, openFile(path, asked)]
  const assertExcluding = watchDescriptors(path, { files: [database, log, index], index, clock })
  const assertCurrent = (): void => {
    refuseLinks(path, database.assertCurrent())
    for (const file of others) file.assertCurrent()
    assertExcluding()
  }
  assertCurrent()
  return assertCurrent
}

interface OpenFile {
  readonly path: string
  readonly identity: string
  assertCurrent(): Stats | BigIntStats
}

/** The file that a path leads to. No other file gets its inode number while SQLite has it open. */
function openFile(from: string, path = from): OpenFile {
  const first = statSync(from, { throwIfNoEntry: false, bigint: true })
  if (first === undefined) throw new MovedError(from)
  // Some file systems have numbers above 2^53, which need BigInt. That takes twice as long.
  const bigint = first.dev > Number.MAX_SAFE_INTEGER || first.ino > Number.MAX_SAFE_INTEGER
  const [device, number] = bigint ? [first.dev, first.ino] : [Number(first.dev), Number(first.ino)]
  return {
    path,
    identity: identityOf(first),
    assertCurrent() {
      const stats = statSync(path, { throwIfNoEntry: false, bigint })
      if (stats?.ino !== number || stats.dev !== device) throw new MovedError(path)
      return stats
    },
  }
}
