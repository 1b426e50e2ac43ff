// @ts-check
import { leave } from '../../bench/support/stage.mjs'
import { median } from '../../bench/support/statistics.mjs'
import { build } from '../build.mjs'

/** @import { Stage } from '../../bench/types.d.ts' */

/** A young generation so large that nothing is collected while the pairs run. */
const NODE_OPTIONS = ['--expose-gc', '--min-semi-space-size=256', '--max-semi-space-size=256']
const PAIRS = 2_048
const ROUNDS = 5

/**
 * What a pair of acquire and release allocates on the heap, by the growth of `heapUsed` over 2,048 pairs after as many
 * to warm up: the median of five rounds. `npm run bench -- --scenario acquire` measures it in the same way, once.
 *
 * @param {Stage} stage
 * @returns {Promise<[title: string, bytes: number][]>}
 */
export async function measureBytes(stage) {
  const { code, output } = await build()
  if (code !== 0) throw new Error(`cannot build:\n${output}`)
  /** @type {[string, number][]} */
  const rows = []
  for (const driver of /** @type {const} */ (['memory', 'redlock'])) {
    const players = await stage.enter({
      does: 'pair',
      driver,
      scenario: 'acquire',
      nodeOptions: NODE_OPTIONS,
      only: ({ kind }) => kind === 'holdfast',
    })
    try {
      for (const player of players) {
        for (const atOnce of [1, 64]) {
          /** @type {number[]} */
          const rounds = []
          for (let round = 0; round < ROUNDS; round += 1) {
            rounds.push((await player.call('allocated', { atOnce, pairs: PAIRS }))['bytes'] ?? Number.NaN)
          }
          rows.push([`${driver}, ${atOnce} at once`, median(rounds)])
        }
      }
    } finally {
      await leave(players)
    }
  }
  return rows
}
