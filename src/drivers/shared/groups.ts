import type { Claim } from '../../core/driver.ts'
import { StoreError } from '../../core/errors.ts'

/** Returns a function that answers each claim in turn, and all members of a group at the first of them. */
export function inGroups<Answer>(
  claims: readonly Claim[],
  one: (claim: Claim) => Answer,
  all: (members: readonly Claim[]) => readonly Answer[],
): (claim: Claim) => Answer {
  if (!claims.some(isInGroup)) return one
  const answers = new Map<Claim, Answer>()
  return (claim) => {
    if (claim.group === undefined) return one(claim)
    if (!answers.has(claim)) {
      const members = claims.filter(({ group }) => group === claim.group)
      all(members).forEach((answer, index) => {
        answers.set(members[index] as Claim, answer)
      })
    }
    return answers.get(claim) as Answer
  }
}

const isInGroup = ({ group }: Claim): boolean => group !== undefined

/** An error for one member of a group is an error for all of its members. */
export function failTogether<Answer>(claims: readonly GroupMember[], answers: readonly Answer[]): readonly Answer[] {
  const failed = new Map<string | undefined, Answer>()
  answers.forEach((answer, index) => {
    const group = claims[index]?.group
    if (group !== undefined && answer instanceof Error) failed.set(group, answer)
  })
  if (failed.size === 0) return answers
  return answers.map((answer, index) => failed.get(claims[index]?.group) ?? answer)
}

/** How many claims from this one on must stay in one list: all of the group that begins here, or 1. */
export function groupSize(claims: readonly GroupMember[], start: number): number {
  const group = claims[start]?.group
  if (group === undefined || claims[start - 1]?.group === group) return 1
  let end = start + 1
  while (claims[end]?.group === group) end += 1
  return end - start
}

/** A claim, or another kind of request, which is in no group. */
export type GroupMember = { readonly group?: string }

/** For a member with a lease from an earlier request, whose group is refused. The core withdraws it. */
export const leftOver = (lockName: string): StoreError =>
  new StoreError(`"${lockName}" was granted by an earlier request, but not all of its group can be granted any more`)
