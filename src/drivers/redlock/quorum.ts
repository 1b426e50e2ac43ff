import { StoreError } from '../../core/errors.ts'
import { clearTimeout, setTimeout } from '../../core/time/native-time.ts'
import type { RedlockNode } from '../redis/driver.ts'
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

/** The nodes of a Redlock. */
export interface Quorum {
  readonly nodes: readonly RedlockNode[]
  /** As errors name them. */
  readonly names: readonly string[]
  /** How many nodes must agree. */
  readonly quorum: number
  /** The time of each node. A later answer counts as an error, and is still passed to `late`. */
  readonly timeoutMs: number
  /** Called once for each node that failed or timed out, also if the others were enough. */
  failed(failure: NodeError): void
}

/** What the nodes are asked, and how their answers decide. */
export interface Question<Answer, Outcome> {
  readonly entries: number
  call(node: RedlockNode): Promise<Answers<Answer>>
  /** Called with what each call resolves or rejects with, also after its timeout. Returns what counts. */
  settled?(at: number, answers: Answers<Answer> | Error): Answers<Answer> | Error
  /** Undefined while the entry is undecided. Must decide when no node is pending. */
  decide(votes: Votes<Answer>, entry: number): Outcome | undefined
  /**
   * Called with the answers of each node before they count. Where there is an outcome, the entry was decided without
   * this answer, which may have to be undone.
   */
  late?(at: number, answers: Answers<Answer>, outcomes: readonly (Outcome | undefined)[]): void
}

type Answers<Answer> = readonly (Answer | Error)[]

/**
 * Calls every node at once and resolves as soon as every entry is decided: it waits for a quorum, never for the slowest
 * node. The other calls continue in the background.
 */
export const askNodes = <Answer, Outcome>(
  quorum: Quorum,
  question: Question<Answer, Outcome>,
): Promise<readonly Outcome[]> =>
  question.entries === 0 ? Promise.resolve([]) : new Promise((decided) => new Round(quorum, question, decided).begin())

/** One question to all nodes, from its calls to the last answer. */
class Round<Answer, Outcome> {
  readonly #quorum: Quorum
  readonly #question: Question<Answer, Outcome>
  readonly #decided: (outcomes: readonly Outcome[]) => void
  readonly #outcomes: (Outcome | undefined)[]
  readonly #votes: Tally<Answer>[] = []
  /** How many entries are undecided. */
  #open: number
  /** By node: whether it has answered, failed or timed out. */
  readonly #isCounted: boolean[]
  /** How many calls are in flight, also after the timeout. */
  #inFlight: number
  #timer: NodeJS.Timeout | undefined

  constructor(quorum: Quorum, question: Question<Answer, Outcome>, decided: (outcomes: readonly Outcome[]) => void) {
    const { length } = quorum.nodes
    this.#quorum = quorum
    this.#question = question
    this.#decided = decided
    this.#open = question.entries
    this.#outcomes = new Array<Outcome | undefined>(question.entries)
    for (let entry = 0; entry < question.entries; entry += 1) {
      this.#votes.push({ answers: [], errors: NO_ERRORS, pending: length })
    }
    this.#isCounted = new Array<boolean>(length).fill(false)
    this.#inFlight = length
  }

  begin(): void {
    const { nodes, timeoutMs } = this.#quorum
    // One timer for all nodes: they are called in the same moment.
    this.#timer = setTimeout(() => {
      const error = new StoreError(`no answer within ${timeoutMs} ms`)
      for (const at of nodes.keys()) if (!this.#isCounted[at]) this.#count(at, error)
    }, timeoutMs)
    for (let at = 0; at < nodes.length; at += 1) {
      this.#question.call(nodes[at] as RedlockNode).then(
        (answers) => this.#settled(at, answers),
        (error: unknown) => this.#settled(at, storeErrorFrom('answer', error)),
      )
    }
  }

  #settled(at: number, answers: Answers<Answer> | Error): void {
    this.#inFlight -= 1
    if (this.#inFlight === 0) clearTimeout(this.#timer)
    const { settled } = this.#question
    this.#count(at, settled === undefined ? answers : settled(at, answers))
  }

  /** Each node counts once. After its timeout, its answers are only late. */
  #count(at: number, answers: Answers<Answer> | Error): void {
    const failure = answers instanceof Error ? answers : undefined
    if (!(answers instanceof Error)) this.#question.late?.(at, answers, this.#outcomes)
    if (this.#isCounted[at]) return
    this.#isCounted[at] = true
    const node = this.#quorum.names[at] as string
    const error = failure ?? (answers as Answers<Answer>).find((answer) => answer instanceof Error)
    if (error !== undefined) this.#quorum.failed({ node, error: error as Error })
    for (let entry = 0; entry < this.#votes.length; entry += 1) {
      this.#vote(entry, node, failure ?? ((answers as Answers<Answer>)[entry] as Answer | Error))
    }
  }

  #vote(entry: number, node: string, answer: Answer | Error): void {
    const votes = this.#votes[entry] as Tally<Answer>
    votes.pending -= 1
    if (answer instanceof Error) votes.errors = [...votes.errors, { node, error: answer }]
    else votes.answers.push(answer)
    if (this.#outcomes[entry] !== undefined) return
    const outcome = this.#question.decide(votes, entry)
    if (outcome === undefined) return
    this.#outcomes[entry] = outcome
    this.#open -= 1
    if (this.#open === 0) this.#decided(this.#outcomes as Outcome[])
  }
}

interface Tally<Answer> extends Votes<Answer> {
  readonly answers: Answer[]
  errors: readonly NodeError[]
  pending: number
}

const NO_ERRORS: readonly NodeError[] = []

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
export function quorumError({ nodes, quorum }: Quorum, what: string, errors: readonly NodeError[]): StoreError {
  const failures = errors.map(({ node, error }) => `${node}: ${error.message}`)
  // The number of nodes that answered is unknown: the decision was made when too few were left.
  const count = `${errors.length} of ${nodes.length} nodes failed, ${quorum} are needed`
  const message = `redlock could not ${what}: ${count}; ${failures.join('; ')}`
  const permanent = errors.filter(({ error }) => !(error instanceof StoreError && error.retryable))
  // If a quorum can never be reached, for example with a wrong password on most nodes, a retry cannot help.
  return new StoreError(message, { cause: errors[0]?.error, retryable: nodes.length - permanent.length >= quorum })
}
