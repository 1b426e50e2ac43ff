import fc from 'fast-check'
import { expect, test } from 'vitest'
import { type Linked, LinkedSet } from '../../src/core/linked-set.ts'

class Member implements Linked<Member> {
  isLinked = false
  before: Member | undefined
  after: Member | undefined
}

test('a linked set has the members of a set, in the same order, after any additions and deletions', () => {
  const steps = fc.array(fc.record({ adds: fc.boolean(), at: fc.nat(5) }), { maxLength: 40 })
  fc.assert(
    fc.property(steps, (taken) => {
      const members = Array.from({ length: 6 }, () => new Member())
      const [model, linked] = [new Set<Member>(), new LinkedSet<Member>()]
      for (const { adds, at } of taken) {
        const member = members[at] as Member
        if (adds) {
          model.add(member)
          linked.add(member)
        } else {
          expect(linked.delete(member)).toBe(model.delete(member))
        }
        expect(linked.all()).toEqual([...model])
        expect([linked.size, linked.first]).toEqual([model.size, [...model][0]])
      }
    }),
  )
})

test('a member that was deleted keeps no other member in memory', () => {
  const [first, second, third] = [new Member(), new Member(), new Member()]
  const linked = new LinkedSet<Member>()
  for (const member of [first, second, third]) linked.add(member)
  linked.delete(second)
  expect([second.before, second.after]).toEqual([undefined, undefined])
  expect([first.after, third.before]).toEqual([third, first])
})
