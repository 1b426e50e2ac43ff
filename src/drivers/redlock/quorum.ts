import { StoreError } from '../../core/errors.ts'
import { clearTimeout, setTimeout } from '../../core/time/native-time.ts'
import { storeErrorFrom } from '../redis/errors.ts'

/** The answers of the nodes so far to one entry of a list. */
export interface Votes<Answer> {
  readonly answers: readonly Answer[]
  readonly errors: readonly NodeError[]
  /** How many nodes have neither answered nor failed. */
  readonly pending: number
}

export interface NodeError {
  readonly node: string
  readonly error: Error
}

export interface NodeCalls<Node, Answer, Outcome> {
  readonly nodes: readonly Node[]
  readonly names: readonly string[]
  readonly entries: number
  /** The time of each node. A later answer counts as an error, and is still passed to `late`. */
  readonly timeoutMs: number
  /** `at`: the place of the node in `nodes`. */
  call(node: Node, at: number): Promise<readonly (Answer | Error)[]>
  /** Undefined while the entry is undecided. Must decide when no node is pending. */
  decide(votes: Votes<Answer>, entry: number): Outcome | undefined
  /** Called once for each node that failed or timed out, also if the others were enough. */
  failed?(failure: NodeError): void
  /** Called with the answers of a node that arrived after their entries were decided. */
  late?(at: number, late: readonly Late<Answer>[]): void
}

export interface Late<Answer> {
  readonly entry: number
  readonly answer: Answer
}

/**
 * Calls every node at once and resolves as soon as every entry is decided: it waits for a quorum, never for the slowest
 * node. The other calls continue in the background.
 */
export function callNodes<Node, Answer, Outcome>(calls: NodeCalls<Node, Answer, Outcome>): Promise<readonly Outcome[]> {
  const { nodes, names, entries, timeoutMs } = calls
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
      const outcome = calls.decide(tally, entry)
      if (outcome === undefined) return
      outcomes[entry] = outcome
      open -= 1
      if (open === 0) resolve(outcomes as Outcome[])
    }

    const isCounted = new Array<boolean>(nodes.length).fill(false)
    const countAll = (at: number, answers: readonly (Answer | Error)[] | Error): void => {
      const name = names[at] as string
      const isFirst = !isCounted[at]
      isCounted[at] = true
      const failure = answers instanceof Error ? answers : undefined
      const error = failure ?? (answers as readonly (Answer | Error)[]).find((answer) => answer instanceof Error)
      if (error !== undefined && isFirst) calls.failed?.({ node: name, error })
      let late: Late<Answer>[] | undefined
      for (let entry = 0; entry < entries; entry += 1) {
        const answer = failure ?? ((answers as readonly (Answer | Error)[])[entry] as Answer | Error)
        // The entry was decided without this answer, which may have to be undone.
        if (outcomes[entry] !== undefined && calls.late !== undefined && !(answer instanceof Error)) {
          late ??= []
          late.push({ entry, answer })
        }
        if (isFirst) count(entry, name, answer)
      }
      if (late !== undefined) calls.late?.(at, late)
    }

    let unanswered = nodes.length
    // One timer for all nodes: they are called in the same moment.
    const timer = setTimeout(() => {
      const error = new StoreError(`no answer within ${timeoutMs} ms`)
      for (const at of nodes.keys()) if (!isCounted[at]) countAll(at, error)
    }, timeoutMs)
    const answered = (): void => {
      unanswered -= 1
      if (unanswered === 0) clearTimeout(timer)
    }
    nodes.forEach((node, at) => {
      calls.call(node, at).then(
        (answers) => {
          answered()
          countAll(at, answers)
        },
        (error: unknown) => {
          answered()
          if (!isCounted[at]) countAll(at, storeErrorFrom('answer', error))
        },
      )
    })
  })
}

/** Whether a quorum says yes: no if too few are left for that, unknown if nodes failed that could have changed it. */
export function countYes<Answer>(
  quorum: number,
  { answers, errors, pending }: Votes<Answer>,
  isYes: (answer: Answer) => boolean,
): 'yes' | 'no' | 'unknown' | undefined {
  let yes = 0
  for (const answer of answers) if (isYes(answer)) yes += 1
  if (yes >= quorum) return 'yes'
  if (yes + errors.length + pending < quorum) return 'no'
  return pending === 0 ? 'unknown' : undefined
}

/** Names each node that failed, and its error. */
export function quorumError(what: string, quorum: number, nodes: number, errors: readonly NodeError[]): StoreError {
  const failures = errors.map(({ node, error }) => `${node}: ${error.message}`)
  // The number of nodes that answered is unknown: the decision was made when too few were left.
  const count = `${errors.length} of ${nodes} nodes failed, ${quorum} are needed`
  const message = `redlock could not ${what}: ${count}; ${failures.join('; ')}`
  const permanent = errors.filter(({ error }) => !(error instanceof StoreError && error.retryable))
  // If a quorum can never be reached, for example with a wrong password on most nodes, a retry cannot help.
  return new StoreError(message, { cause: errors[0]?.error, retryable: nodes - permanent.length >= quorum })
}
