import { StoreError } from '../../core/errors.ts'
import { clearTimeout, setTimeout } from '../../core/time/native-time.ts'
import { storeErrorFrom } from '../redis/errors.ts'

/** What the nodes have said so far to one entry of a list. */
export interface Votes<Answer> {
  readonly answers: readonly Answer[]
  readonly errors: readonly NodeError[]
  /** How many have neither answered nor failed. */
  readonly pending: number
}

export interface NodeError {
  readonly node: string
  readonly error: Error
}

export interface Poll<Node, Answer, Outcome> {
  readonly nodes: readonly Node[]
  readonly names: readonly string[]
  readonly entries: number
  /** Each node has so long; what comes later counts as an error here, and still reaches `late`. */
  readonly timeoutMs: number
  call(node: Node): Promise<readonly (Answer | Error)[]>
  /** Undefined while it is open. Must decide once nothing is pending. */
  decide(votes: Votes<Answer>, entry: number): Outcome | undefined
  /** Told once of each node that failed or ran out of time, whatever the others say. */
  failed?(failure: NodeError): void
  /** A node's answer that came after the entry was decided. */
  late?(node: Node, entry: number, answer: Answer, outcome: Outcome): void
}

/**
 * Asks every node at once and resolves as soon as every entry is decided: it waits for a quorum, never for the slowest
 * node. All calls go on in the background to their end.
 */
export function poll<Node, Answer, Outcome>(what: Poll<Node, Answer, Outcome>): Promise<readonly Outcome[]> {
  const { nodes, names, entries, timeoutMs } = what
  return new Promise((resolve) => {
    const outcomes = new Array<Outcome | undefined>(entries)
    const votes = Array.from({ length: entries }, () => ({
      answers: [] as Answer[],
      errors: [] as NodeError[],
      pending: nodes.length,
    }))
    let open = entries
    if (open === 0) resolve([])

    const count = (entry: number, node: string, answer: Answer | Error): void => {
      const tally = votes[entry] as (typeof votes)[number]
      tally.pending -= 1
      if (answer instanceof Error) tally.errors.push({ node, error: answer })
      else tally.answers.push(answer)
      if (outcomes[entry] !== undefined) return
      const outcome = what.decide(tally, entry)
      if (outcome === undefined) return
      outcomes[entry] = outcome
      open -= 1
      if (open === 0) resolve(outcomes as Outcome[])
    }

    nodes.forEach((node, at) => {
      const name = names[at] as string
      let counted = false
      const countAll = (answers: readonly (Answer | Error)[] | Error): void => {
        const error = answers instanceof Error ? answers : answers.find((answer) => answer instanceof Error)
        if (error !== undefined && !counted) what.failed?.({ node: name, error })
        for (let entry = 0; entry < entries; entry += 1) {
          const answer = answers instanceof Error ? answers : (answers[entry] as Answer | Error)
          const outcome = outcomes[entry]
          if (!counted) count(entry, name, answer)
          // Whoever was decided without this answer may have to undo what it says.
          if (outcome !== undefined && !(answer instanceof Error)) what.late?.(node, entry, answer, outcome)
        }
        counted = true
      }
      const timer = setTimeout(() => countAll(new StoreError(`no answer within ${timeoutMs} ms`)), timeoutMs)
      new Promise<readonly (Answer | Error)[]>((go) => go(what.call(node))).then(
        (answers) => {
          clearTimeout(timer)
          countAll(answers)
        },
        (error: unknown) => {
          clearTimeout(timer)
          if (!counted) countAll(storeErrorFrom('answer', error))
        },
      )
    })
  })
}

/** Which node failed how. */
export function quorumError(what: string, quorum: number, nodes: number, errors: readonly NodeError[]): StoreError {
  const failures = errors.map(({ node, error }) => `${node}: ${error.message}`)
  // How many have answered is not known: it was over when too few were left.
  const message = `redlock could not ${what}: ${errors.length} of ${nodes} nodes failed, ${quorum} are needed; ${failures.join('; ')}`
  const permanent = errors.filter(({ error }) => !(error instanceof StoreError && error.retryable))
  // Where a quorum can never be reached, as with a password that is wrong on most nodes, waiting would be for nothing.
  return new StoreError(message, { cause: errors[0]?.error, retryable: nodes - permanent.length >= quorum })
}
