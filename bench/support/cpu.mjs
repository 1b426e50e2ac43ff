// @ts-check
import { readdirSync, readFileSync } from 'node:fs'

const TICK_MICROS = 10_000

/**
 * The CPU time of a process with its children, in microseconds. Linux only: 0 elsewhere.
 *
 * @param {number} pid
 */
export function cpuOfTree(pid) {
  if (process.platform !== 'linux') return 0
  return treeOf(pid).reduce((sum, each) => sum + cpuOf(each), 0)
}

/** @param {number} pid */
function treeOf(pid) {
  const tree = [pid]
  for (const each of tree) {
    try {
      const children = readFileSync(`/proc/${each}/task/${each}/children`, 'utf8')
      tree.push(...children.split(' ').filter(Boolean).map(Number))
    } catch {
      // It has ended.
    }
  }
  return tree
}

/** @param {number} pid */
function cpuOf(pid) {
  try {
    const threads = readdirSync(`/proc/${pid}/task`)
    const nanos = threads.map((each) =>
      Number(readFileSync(`/proc/${pid}/task/${each}/schedstat`, 'utf8').split(' ')[0]),
    )
    return nanos.reduce((sum, each) => sum + each, 0) / 1_000 + endedChildren(pid) * TICK_MICROS
  } catch {
    return (ticksOf(pid) + endedChildren(pid)) * TICK_MICROS
  }
}

/**
 * For kernels without schedstat.
 *
 * @param {number} pid
 */
const ticksOf = (pid) => statOf(pid, 11) + statOf(pid, 12)

/**
 * The time of children that have ended, such as a backend whose client has disconnected. It must not be missing later.
 *
 * @param {number} pid
 */
const endedChildren = (pid) => statOf(pid, 13) + statOf(pid, 14)

/**
 * @param {number} pid
 * @param {number} field counted after the name of the program
 */
function statOf(pid, field) {
  try {
    return Number(readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1]?.split(' ')[field])
  } catch {
    return 0 // It has ended.
  }
}
