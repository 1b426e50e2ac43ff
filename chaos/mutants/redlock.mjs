// @ts-check
/** @import { Mutant } from './mutant.mjs' */

/** @type {Mutant[]} */
export const redlock = [
  {
    name: 'redlock-quorum-off-by-one',
    breaks: 'half of the nodes are enough, and two clients have half each',
    file: 'src/drivers/redlock/ballot.ts',
    search: 'if (grants.length >= quorum) {',
    replace: 'if (grants.length >= quorum - 1) {',
    checks: ['model', 'test/drivers/redlock/votes.test.ts'],
  },
  {
    name: 'redlock-mark-forgotten',
    breaks: 'a node grants a token below its mark',
    file: 'protocol/redis/leases.lua',
    search: "if proposed <= mark() then return { 'b', mark() } end",
    replace: "if proposed < 0 then return { 'b', mark() } end",
    checks: ['test/drivers/redlock/votes.test.ts', 'test/drivers/redlock/rounds.test.ts'],
  },
  {
    name: 'redlock-mark-forgotten-for-free-locks',
    breaks: 'a node grants a free lock with a token below its mark',
    file: 'protocol/redis/ballot.lua',
    search: 'and not isLeft[counter] and proposed > mark',
    replace: 'and not isLeft[counter] and proposed > 0',
    checks: ['test/drivers/redlock/votes.test.ts', 'test/drivers/redlock/rounds.test.ts'],
  },
  {
    name: 'redlock-released-ballot-counted',
    breaks: 'a claim is granted by votes whose release was sent',
    file: 'src/drivers/redlock/ballot.ts',
    search: "if (state === 'over') return { kind: 'withdrawn', release: tokens }",
    replace: "if (tokens.length === 0) return { kind: 'withdrawn', release: tokens }",
    checks: ['model', 'test/drivers/redlock/rounds.test.ts'],
  },
  {
    name: 'redlock-late-vote-kept',
    breaks: 'a vote that arrives after its release stays on its node',
    file: 'src/drivers/redlock/ballot.ts',
    search: "state !== 'over' && tokens.at(-1) === token",
    replace: "state !== 'over' || tokens.at(-1) === token",
    checks: ['test/drivers/redlock/rounds.test.ts'],
  },
  {
    name: 'redlock-higher-mark-ignored',
    breaks: 'a token is granted below one that a node of the quorum remembers',
    file: 'src/drivers/redlock/ballot.ts',
    search: 'if (higher > token) return { proposer: learned',
    replace: 'if (higher < 0) return { proposer: learned',
    checks: ['model', 'test/drivers/redlock/voters.test.ts :: tokens rise although|a quorum without a node'],
  },
  {
    name: 'redlock-released-on-a-quorum-only',
    breaks: 'votes stay on the nodes that did not answer',
    file: 'src/drivers/redlock/driver.ts',
    search: "for (const node of nodes) inBackground(node, 'release', node.release(leases))",
    replace: "for (const node of nodes.slice(0, quorum)) inBackground(node, 'release', node.release(leases))",
    checks: ['test/drivers/redlock/failures.test.ts :: failure 17', 'test/drivers/redlock/rounds.test.ts'],
  },
  {
    name: 'redlock-restarted-node-votes',
    breaks: 'a node that has lost its data votes at once',
    file: 'protocol/redis/ballot.lua',
    search: "if leftMs > 0 then return { 's', leftMs } end",
    replace: "if leftMs > 1e12 then return { 's', leftMs } end",
    checks: ['test/drivers/redlock/voters.test.ts :: does not vote until'],
  },
  {
    name: 'redlock-error-counts-as-renewed',
    breaks: 'a renewal counts although a quorum did not confirm it',
    file: 'src/drivers/redlock/quorum.ts',
    search: "if (yes >= quorum) return 'yes'",
    replace: "if (yes + errors.length >= quorum) return 'yes'",
    checks: ['test/drivers/redlock/count-yes.test.ts'],
  },
]
