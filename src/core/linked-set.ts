/** A member of a `LinkedSet`. The fields belong to the set. An object is in at most one such set. */
export interface Linked<Member> {
  isLinked: boolean
  before: Member | undefined
  after: Member | undefined
}

/**
 * A set in the order of insertion whose members carry the links. What is in flight is mostly one object after the
 * other, and a `Set` allocates a new table whenever its last member leaves: that was 7 % of what a claim allocated.
 */
export class LinkedSet<Member extends Linked<Member>> {
  #first: Member | undefined
  #last: Member | undefined
  #size = 0

  get size(): number {
    return this.#size
  }

  get first(): Member | undefined {
    return this.#first
  }

  add(member: Member): void {
    if (member.isLinked) return
    member.isLinked = true
    member.before = this.#last
    if (this.#last === undefined) this.#first = member
    else this.#last.after = member
    this.#last = member
    this.#size += 1
  }

  /** Whether it was a member. */
  delete(member: Member): boolean {
    if (!member.isLinked) return false
    const { before, after } = member
    if (before === undefined) this.#first = after
    else before.after = after
    if (after === undefined) this.#last = before
    else after.before = before
    member.isLinked = false
    member.before = undefined
    member.after = undefined
    this.#size -= 1
    return true
  }

  /** The members of now, in an array: members may leave while they are visited. */
  all(): Member[] {
    const members: Member[] = []
    for (let member = this.#first; member !== undefined; member = member.after) members.push(member)
    return members
  }
}
