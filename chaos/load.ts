import { readFileSync } from 'node:fs'

/** Adds up the processor time of processes. Linux only: elsewhere it is 0. */
export class LoadMeter {
  readonly #ended: Record<string, number> = {}

  /** Must be called before the process ends: afterwards its time is unknown. */
  add(group: string, pid: number): void {
    this.#ended[group] = (this.#ended[group] ?? 0) + cpuSecondsOf(pid)
  }

  get seconds(): Readonly<Record<string, number>> {
    return this.#ended
  }
}

/** The kernel's unit in /proc on every Linux that Node supports. */
const TICKS_PER_SECOND = 100

function cpuSecondsOf(pid: number): number {
  try {
    const fields = readFileSync(`/proc/${pid}/stat`, 'utf8')
      .replace(/^.*\) /s, '')
      .split(' ')
    return (Number(fields[11]) + Number(fields[12])) / TICKS_PER_SECOND
  } catch {
    return 0
  }
}
