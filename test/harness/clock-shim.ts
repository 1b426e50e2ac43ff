import { execFile } from 'node:child_process'
import { createHash, randomUUID } from 'node:crypto'
import { closeSync, copyFileSync, existsSync, mkdirSync, openSync, readFileSync, renameSync, writeSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { cacheFolder, makeFolder } from './folders.ts'

/** A wall clock of its own for the servers that are started with it. */
export interface ShiftedClock extends Disposable {
  env: Record<string, string>
  /** Sets how far the clock is off the true time, at once, for servers that run: 60_000 is a minute fast, 0 is right. */
  shift(offsetMs: number): void
}

/** Linux only, and needs a C compiler; rejects with a sentence on what to install when there is none. */
export async function shiftedClock(): Promise<ShiftedClock> {
  const built = await buildShim()
  const folder = makeFolder('clock')
  const offsetFile = join(folder.path, 'offset')
  // The cache may lie in root's home, where the user that PostgreSQL runs as can't read; a failed preload is only a warning.
  const library = join(folder.path, 'clock-shim.so')
  copyFileSync(built, library)
  const offset = openSync(offsetFile, 'w', 0o644)
  const shift = (offsetMs: number) => {
    const bytes = Buffer.alloc(8)
    // The machine's own byte order, which is little-endian wherever Node's Linux builds run but on s390x.
    bytes.writeBigInt64LE(BigInt(Math.round(offsetMs * 1_000)) * 1_000n)
    writeSync(offset, bytes, 0, 8, 0)
  }
  shift(0)
  return {
    env: { LD_PRELOAD: library, HOLDFAST_CLOCK_FILE: offsetFile },
    shift,
    [Symbol.dispose]() {
      closeSync(offset)
      folder.remove()
    },
  }
}

/** Built once for each version of its source and machine. */
async function buildShim(): Promise<string> {
  const source = fileURLToPath(new URL('./clock-shim.c', import.meta.url))
  const version = createHash('sha256').update(readFileSync(source)).digest('hex').slice(0, 12)
  const library = join(cacheFolder(), `clock-shim-${version}-${process.arch}.so`)
  if (existsSync(library)) return library
  mkdirSync(cacheFolder(), { recursive: true })
  // Under a name of its own first: nobody else who builds it at the same time may see half a library.
  const unfinished = `${library}.${randomUUID()}`
  try {
    await promisify(execFile)('cc', ['-shared', '-fPIC', '-O2', '-Wall', '-o', unfinished, source], { timeout: 30_000 })
  } catch (cause) {
    throw new Error('the clock shim could not be built: install a C compiler (Debian: apt-get install gcc libc6-dev)', {
      cause,
    })
  }
  renameSync(unfinished, library)
  return library
}
