import assert from 'node:assert/strict'
import { describe, it } from 'vitest'
import type { Bounds } from '../../chaos/model/bounds.ts'
import { SHORT, SMALLEST } from '../../chaos/model/configurations.ts'
import { explore } from '../../chaos/model/explore.ts'
import { MUTANTS } from '../../chaos/model/mutants.ts'
import { RULES } from '../../chaos/model/rules.ts'

/** All interleavings within small bounds. `npm run model` explores larger ones. */
describe("the model of Redlock's ballots", () => {
  for (const { name, bounds } of SHORT) {
    it(`every interleaving keeps one holder, rising tokens, and a way to the lock: ${name}`, () => {
      const { violation, isComplete, states, grants } = explore({ bounds, rules: RULES })
      assert.equal(violation, undefined, violation && [violation.rule, ...violation.steps].join('\n'))
      assert.ok(isComplete)
      assert.ok(states > 5_000 && grants > 500, `explored only ${states} states, ${grants} of them after a grant`)
    })
  }

  for (const { name, ...options } of MUTANTS) {
    it(`finds the shortest way to the failure of this mutant: ${name}`, () => {
      const { violation, depth } = explore(options)
      assert.ok(violation !== undefined, `${name} was not found`)
      assert.equal(violation.steps.length, depth)
    })
  }

  for (const [what, more] of [
    ['if client A is ahead', { clientsAheadMs: [200, 0] }],
    ['if a node fails over', { failovers: 1 }],
  ] satisfies [string, Partial<Bounds>][]) {
    it(`dropping messages that cannot matter any more changes no verdict: ${what}`, () => {
      const bounds = { ...SMALLEST, ticks: 1, ...more, simplifies: false }
      const whole = explore({ bounds, rules: RULES })
      const less = explore({ bounds: { ...bounds, simplifies: true }, rules: RULES })
      assert.equal(whole.violation, undefined)
      assert.equal(less.violation, undefined)
      assert.ok(less.states < whole.states, `${less.states} of ${whole.states} states`)
    })
  }
})
