import { type EventEmitter, getEventListeners } from 'node:events'
import { readdirSync, readlinkSync } from 'node:fs'
import { monitorEventLoopDelay } from 'node:perf_hooks'
import { setTimeout as sleep } from 'node:timers/promises'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { countTimers } from './timers.ts'

/** What a process has open. */
export interface Resources {
  /** Timers, also those that do not keep the process alive. */
  timers: number
  /** Listeners of the process itself. */
  processListeners: number
  /** Listeners of an abort signal that lives as long as the process, and that many claims get. */
  signalListeners: number
  /** Listeners that drivers have added to the application's own client of the store. */
  clientListeners: number
  /** Linux only, as are file descriptors. */
  sockets: number
  fileDescriptors: number
  /** Their number by what they are. */
  descriptors: Record<string, number>
  /** Node's own list, without timers: sockets, pipes, requests, threads. */
  handles: Record<string, number>
}

export interface Memory {
  /** What is reachable after a garbage collection. */
  heapBytes: number
  /** Buffers outside of the heap. */
  externalBytes: number
  rssBytes: number
}

/** How late the event loop ran its timers since the last look, without the garbage collection of the soak itself. */
export interface LoopDelay {
  p99Ms: number
  worstMs: number
}

const RESOLUTION_MS = 10
/** The delay by a garbage collection has been recorded after this time. */
const RECORDED_AFTER_MS = 3 * RESOLUTION_MS

/** Looks at this process. Create it before the package under test is loaded. */
export class ProcessState {
  readonly #timers = countTimers()
  readonly #delays = monitorEventLoopDelay({ resolution: RESOLUTION_MS })
  readonly #collectGarbage: () => void

  constructor() {
    setFlagsFromString('--expose-gc')
    this.#collectGarbage = runInNewContext('gc') as () => void
    this.#delays.enable()
  }

  resources(signal: AbortSignal, clientListeners: number): Resources {
    const links = fileDescriptors()
    return {
      timers: this.#timers(),
      processListeners: listenersOf(process),
      signalListeners: getEventListeners(signal, 'abort').length,
      clientListeners,
      sockets: links.filter((link) => link.startsWith('socket:')).length,
      fileDescriptors: links.length,
      descriptors: counted(links.map((link) => link.replace(/:\[\d+\]$/, ''))),
      handles: counted(process.getActiveResourcesInfo().filter((name) => name !== 'Timeout' && name !== 'Immediate')),
    }
  }

  /** Collects garbage first. */
  async memory(): Promise<Memory & LoopDelay> {
    const delay = (ns: number): number => Math.max(0, ns / 1e6 - RESOLUTION_MS)
    const found = { p99Ms: delay(this.#delays.percentile(99)), worstMs: delay(this.#delays.max) }
    this.#collectGarbage()
    const { heapUsed, external, rss } = process.memoryUsage()
    await sleep(RECORDED_AFTER_MS)
    this.#delays.reset()
    return { heapBytes: heapUsed, externalBytes: external, rssBytes: rss, ...found }
  }
}

export const listenersOf = (emitter: EventEmitter): number =>
  emitter.eventNames().reduce((sum, name) => sum + emitter.listenerCount(name), 0)

function fileDescriptors(): string[] {
  if (process.platform !== 'linux') return []
  return readdirSync('/proc/self/fd').flatMap((name) => {
    try {
      return [readlinkSync(`/proc/self/fd/${name}`)]
    } catch {
      return [] // That of the folder itself, which is closed by now.
    }
  })
}

function counted(names: readonly string[]): Record<string, number> {
  const counts: Record<string, number> = {}
  for (const name of [...names].sort()) counts[name] = (counts[name] ?? 0) + 1
  return counts
}
