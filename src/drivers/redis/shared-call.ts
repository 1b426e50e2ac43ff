import type { ScriptCall } from './scripts.ts'

/**
 * A list of requests for all nodes of a Redlock. The nodes usually have the same prefix, so the call is put together
 * once.
 */
export class SharedCall<Request> {
  readonly requests: readonly Request[]
  readonly #build: (prefix: string, requests: readonly Request[]) => ScriptCall
  #prefix = ''
  #call: ScriptCall | undefined

  constructor(requests: readonly Request[], build: (prefix: string, requests: readonly Request[]) => ScriptCall) {
    this.requests = requests
    this.#build = build
  }

  /** `requests`: all of them, or some. */
  callFor(prefix: string, requests: readonly Request[]): ScriptCall {
    if (requests !== this.requests) return this.#build(prefix, requests)
    if (this.#call === undefined || this.#prefix !== prefix) {
      this.#call = this.#build(prefix, requests)
      this.#prefix = prefix
    }
    return this.#call
  }
}
