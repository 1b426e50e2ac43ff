// @ts-check
import { readdirSync, readFileSync } from 'node:fs'
import { root } from '../support/command.mjs'

/** The part of core/lease that is a heartbeat in a thread of its own. */
const THREAD = /^core\/lease\/(?:heartbeat-thread|remote-renewer|thread-messages|shared-deadlines)/

/** @returns {Record<string, number>} */
export function sizes() {
  const files = readdirSync(`${root}src`, { recursive: true, encoding: 'utf8' })
    .map((file) => file.replaceAll('\\', '/'))
    .filter((file) => /\.tsx?$/.test(file))
    .map((file) => ({ file, lines: readFileSync(`${root}src/${file}`, 'utf8').split('\n').length - 1 }))
  const core = files.filter(({ file }) => file.startsWith('core/'))
  const main = core.filter(({ file }) => !file.startsWith('core/deadlock/') && !THREAD.test(file))
  const library = files.filter(({ file }) => !/^(?:testing|dashboard)\//.test(file))
  const surface = readFileSync(`${root}test/public-surface.txt`, 'utf8')
  return {
    'lines of src/core': linesOf(core),
    'lines of its main path, without deadlock/ and the thread': linesOf(main),
    'lines of src without testing/ and dashboard/': linesOf(library),
    'files of src/core': core.length,
    'files of src without testing/ and dashboard/': library.length,
    'files of src': files.length,
    'exported names of the public surface': [...surface.matchAll(/^ {2}\w+ = /gm)].length,
  }
}

/** @param {readonly { lines: number }[]} files */
const linesOf = (files) => files.reduce((sum, { lines }) => sum + lines, 0)
