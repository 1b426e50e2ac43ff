import { readFileSync } from 'node:fs'
import { processTree } from '../../test/harness/processes.ts'

/** The private memory of a process and its children: without files and shared memory. Linux only: elsewhere it is 0. */
export function privateBytes(pid: number): number {
  return processTree(pid).reduce((sum, each) => sum + kibibytes(each) * 1_024, 0)
}

/** The processor time of a process and its children, also of those that have ended. Linux only: elsewhere it is 0. */
export function cpuSeconds(pid: number): number {
  return processTree(pid).reduce((sum, each) => sum + ticks(each, each === pid) / TICKS_PER_SECOND, 0)
}

/** The kernel's unit in /proc on every Linux that Node supports. */
const TICKS_PER_SECOND = 100

const kibibytes = (pid: number): number => Number(/^RssAnon:\s*(\d+)/m.exec(read(`/proc/${pid}/status`))?.[1] ?? 0)

function ticks(pid: number, withEnded: boolean): number {
  const fields = read(`/proc/${pid}/stat`)
    .replace(/^.*\) /s, '')
    .split(' ')
  return fields.slice(11, withEnded ? 15 : 13).reduce((sum, each) => sum + Number(each), 0)
}

function read(file: string): string {
  try {
    return readFileSync(file, 'utf8')
  } catch {
    return '' // The process has ended meanwhile.
  }
}
