import type { HoldfastError } from '../errors.ts'
import type { RequestList } from './batch.ts'
import type { Call } from './call-deadlines.ts'

/** A kind of requests that go to the driver in lists. */
export interface ListKind<Request, Answer> {
  readonly what: 'acquire' | 'renew' | 'release' | 'consume'
  send(requests: readonly Request[]): Promise<readonly (Answer | Error)[]>
  /** The list was answered. Called before each request gets its answer. */
  answered?(requests: readonly Request[]): void
  /** The list was answered after its deadline, when its requests had failed. */
  late?(requests: readonly Request[], answers: readonly (Answer | Error)[]): void
}

/** A list on its way. One object instead of a promise for each step: with one claim at a time, each step counts. */
export class ListCall<Request, Answer> implements Call<readonly (Answer | Error)[]> {
  readonly dueMs: number
  isLinked = false
  before: Call<unknown> | undefined
  after: Call<unknown> | undefined
  readonly #kind: ListKind<Request, Answer>
  readonly #list: RequestList<Request, Answer>
  readonly #check: (requests: readonly Request[], answers: unknown) => readonly (Answer | Error)[]

  constructor(
    kind: ListKind<Request, Answer>,
    list: RequestList<Request, Answer>,
    dueMs: number,
    check: (requests: readonly Request[], answers: unknown) => readonly (Answer | Error)[],
  ) {
    this.#kind = kind
    this.#list = list
    this.dueMs = dueMs
    this.#check = check
  }

  get what(): string {
    return this.#kind.what
  }

  send(): Promise<readonly (Answer | Error)[]> {
    return this.#kind.send(this.#list.requests)
  }

  answered(answers: readonly (Answer | Error)[]): void {
    const { requests } = this.#list
    let checked: readonly (Answer | Error)[]
    try {
      checked = this.#check(requests, answers)
    } catch (error) {
      this.#list.failed(error)
      return
    }
    this.#kind.answered?.(requests)
    this.#list.answered(checked)
  }

  failed(error: HoldfastError): void {
    this.#list.failed(error)
  }

  late(answers: readonly (Answer | Error)[]): void {
    const { requests } = this.#list
    const { late } = this.#kind
    if (late === undefined || !Array.isArray(answers) || answers.length !== requests.length) return
    late(requests, this.#check(requests, answers))
  }
}
