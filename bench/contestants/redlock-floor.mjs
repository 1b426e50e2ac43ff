// @ts-check
// Redlock by hand: the same SET on every node until a quorum has answered, then the same script on every node.
import { COMPARE_AND_DELETE, COMPARE_AND_DELETE_SHA } from '../support/bare-redis.mjs'
import { openIoredis } from '../support/clients.mjs'

/** @import { Contestant, OpenOptions } from '../types.d.ts' */

/**
 * @param {OpenOptions} options
 * @returns {Promise<Contestant>}
 */
export async function open({ stores }) {
  const clients = stores.redlock.map((url) => openIoredis(url))
  const quorum = Math.floor(clients.length / 2) + 1
  await Promise.all(clients.map((client) => client.script('LOAD', COMPARE_AND_DELETE)))
  let turn = 0
  return {
    async pair(name) {
      turn += 1
      const value = `${process.pid}:${turn}`
      await agreement(
        clients.map((client) => client.set(name, value, 'PX', 30_000, 'NX')),
        { quorum, wanted: 'OK' },
      )
      await agreement(
        clients.map((client) => client.evalsha(COMPARE_AND_DELETE_SHA, 1, name, value)),
        { quorum, wanted: 1 },
      )
    },
    close: async () => clients.map((client) => client.disconnect()),
  }
}

/**
 * Resolves when so many nodes have answered what is wanted.
 *
 * @param {readonly Promise<unknown>[]} answers
 * @param {{ quorum: number, wanted: unknown }} options
 */
function agreement(answers, { quorum, wanted }) {
  return new Promise((resolve, reject) => {
    let agreed = 0
    let others = 0
    const disagree = () => {
      others += 1
      if (others === answers.length - quorum + 1) reject(new Error('no quorum'))
    }
    /** @param {unknown} answer */
    const count = (answer) => {
      if (answer !== wanted) return disagree()
      agreed += 1
      if (agreed === quorum) resolve(undefined)
    }
    for (const answer of answers) answer.then(count, disagree)
  })
}
