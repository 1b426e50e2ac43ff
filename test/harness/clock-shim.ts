import { execFile } from 'node:child_process'
import { createHash, randomUUID } from 'node:crypto'
import { closeSync, copyFileSync, existsSync, mkdirSync, openSync, readFileSync, renameSync, writeSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { cacheFolder, makeFolder } from './folders.ts'

/** A shifted wall clock for the servers that are started with it. */
export interface ShiftedClock extends Disposable {
  env: Record<string, string>
  /** Sets the offset from the true time, also for running servers, at once: 60_000 is a minute fast, 0 is right. */
  shift(offsetMs: number): void
}

/** A disk that is slow to make files grow, for the PostgreSQL servers that are started with it. */
export interface SlowDisk extends Disposable {
  env: Record<string, string>
  /** How long each write that makes a file grow takes from now on, also in running servers. */
  delay(ms: number): void
}

/** Linux only. Needs a C compiler, and rejects with a message on what to install if there is none. */
export async function shiftedClock(): Promise<ShiftedClock> {
  const { write, ...shim } = await openShim('clock-shim', 'HOLDFAST_CLOCK_FILE')
  return { ...shim, shift: (offsetMs) => write(BigInt(Math.round(offsetMs * 1_000)) * 1_000n) }
}

/** Linux only. Needs a C compiler, and rejects with a message on what to install if there is none. */
export async function slowDisk(): Promise<SlowDisk> {
  const { write, ...shim } = await openShim('slow-disk-shim', 'HOLDFAST_DISK_FILE')
  return { ...shim, delay: (ms) => write(BigInt(Math.round(ms * 1_000))) }
}

/** A library to preload, and the number that it reads from a file. */
async function openShim(name: string, variable: string) {
  const built = await buildShim(name)
  const folder = makeFolder(name)
  const numberFile = join(folder.path, 'number')
  // A copy, because the user that PostgreSQL runs as cannot read a cache in root's home, and a preload fails silently.
  const library = join(folder.path, `${name}.so`)
  copyFileSync(built, library)
  const opened = openSync(numberFile, 'w', 0o644)
  const write = (number: bigint): void => {
    const bytes = Buffer.alloc(8)
    // The machine's byte order: little-endian on all of Node's Linux builds except s390x.
    bytes.writeBigInt64LE(number)
    writeSync(opened, bytes, 0, 8, 0)
  }
  write(0n)
  return {
    env: { LD_PRELOAD: library, [variable]: numberFile },
    write,
    [Symbol.dispose]() {
      closeSync(opened)
      folder.remove()
    },
  }
}

/** Builds it once for each version of its source and each architecture. */
async function buildShim(name: string): Promise<string> {
  const source = fileURLToPath(new URL(`./${name}.c`, import.meta.url))
  const version = createHash('sha256').update(readFileSync(source)).digest('hex').slice(0, 12)
  const library = join(cacheFolder(), `${name}-${version}-${process.arch}.so`)
  if (existsSync(library)) return library
  mkdirSync(cacheFolder(), { recursive: true })
  // Built under a unique name first: another process that builds it at the same time must not see half a library.
  const unfinished = `${library}.${randomUUID()}`
  try {
    await promisify(execFile)('cc', ['-shared', '-fPIC', '-O2', '-Wall', '-o', unfinished, source], { timeout: 30_000 })
  } catch (cause) {
    throw new Error(`cannot build ${name}: install a C compiler (Debian: apt-get install gcc libc6-dev)`, {
      cause,
    })
  }
  renameSync(unfinished, library)
  return library
}
