import { checkBoolean, checkFunction } from '../../core/arguments.ts'
import { warnOfFault } from '../../core/call-listener.ts'
import { InvalidArgumentError, StoreError } from '../../core/errors.ts'
import { checkOptions, optionNames } from '../../core/options.ts'
import { rateLimitHeaders } from './headers.ts'
import { RateLimiter } from './rate-limiter.ts'

export interface HttpRateLimitOptions<Request> {
  limiter: RateLimiter
  /** For whom the limits count, such as `api:${user}` or the client's address. Undefined: this request is not limited. */
  key: (request: Request) => string | undefined | Promise<string | undefined>
  /** How many units a request takes. 1 if not said. */
  cost?: (request: Request) => number | Promise<number>
  /** What the limits are called in the header fields, one name for each. `default`, or `per-60s` and the like, if not said. */
  names?: readonly string[]
  /** True: when the store cannot be asked, requests pass, without header fields. False, the default: they fail with the `StoreError`. */
  failOpen?: boolean
}

/** What is called of a request and a response of node:http, Connect and Express. */
export interface NodeRequest {
  readonly headers: Readonly<Record<string, string | string[] | undefined>>
  readonly method?: string | undefined
  readonly url?: string | undefined
  readonly ip?: string | undefined
}
export interface NodeResponse {
  statusCode: number
  readonly headersSent?: boolean | undefined
  getHeader(name: string): number | string | readonly string[] | undefined
  setHeader(name: string, value: string): unknown
  end(body: string): unknown
}

/** What is called of Fastify. */
export interface FastifyReplyLike {
  getHeader(name: string): number | string | readonly string[] | undefined
  header(name: string, value: string): unknown
  code(status: number): unknown
  send(body: string): unknown
}

/**
 * A handler of the fetch kind, `(request) => response`, that limits its requests: each response has `RateLimit` and `RateLimit-Policy`, and one that is over the
 * limit is a 429 with `Retry-After` and a problem document, without the handler being called. Rejects with what the handler, `key`, `cost` or the limiter throw.
 */
export function rateLimitFetch<Request, Rest extends unknown[]>(
  handler: (request: Request, ...rest: Rest) => Response | Promise<Response>,
  options: HttpRateLimitOptions<Request>,
): (request: Request, ...rest: Rest) => Promise<Response> {
  checkFunction('handler', handler)
  const judge = judgeFrom(options)
  return async (request, ...rest) => {
    const verdict = await judge(request)
    const response = verdict?.refusal ? new Response(verdict.refusal, { status: 429 }) : await handler(request, ...rest)
    // One that no handler can make anew, such as that of an upgrade to a WebSocket, goes out as it is.
    if (verdict === undefined || response.status < 200) return response
    // A response that came from elsewhere, such as a redirect, has headers that cannot be changed.
    const own = new Response(response.body, response)
    for (const [name, value] of verdict.fields) {
      if (LISTS.has(name)) own.headers.append(name, value)
      else own.headers.set(name, value)
    }
    return own
  }
}

/**
 * Middleware for Express, Connect, and all others that hand on `(request, response, next)` of node:http. As
 * `rateLimitFetch`; errors go to `next`, which is called at most once. What `next` itself throws is a warning, and the
 * answer is a 500 unless something was answered before.
 */
export function rateLimitExpress<Request = NodeRequest>(
  options: HttpRateLimitOptions<Request>,
): (request: Request, response: NodeResponse, next: (error?: unknown) => void) => void {
  const judge = judgeFrom(options)
  return (request, response, next) => {
    const handOn = (...error: [error?: unknown]): void => {
      try {
        next(...error)
      } catch (thrown) {
        // As it does where a handler behind it fails before its first await, and nothing between them catches it.
        warnOfFault('next, called by rateLimitExpress,', thrown)
        if (response.headersSent) return
        response.statusCode = 500
        response.end('')
      }
    }
    const pass = (verdict: Verdict | undefined): boolean => {
      // Somebody else, such as a time limit, may have answered while the store was being asked.
      if (!response.headersSent) writeVerdict(response, verdict)
      return verdict?.refusal === undefined
    }
    judge(request)
      .then(pass)
      .then((passes) => {
        if (passes) handOn()
      }, handOn)
  }
}

function writeVerdict(response: NodeResponse, verdict: Verdict | undefined): void {
  for (const [name, value] of verdict?.fields ?? []) {
    response.setHeader(name, LISTS.has(name) ? joined(response.getHeader(name), value) : value)
  }
  if (verdict?.refusal === undefined) return
  response.statusCode = 429
  response.end(verdict.refusal)
}

/** A hook for Fastify: `app.addHook('onRequest', rateLimitFastify({ … }))`, or for a single route. As `rateLimitFetch`. */
export function rateLimitFastify<Request = NodeRequest>(
  options: HttpRateLimitOptions<Request>,
): (request: Request, reply: FastifyReplyLike) => Promise<unknown> {
  const judge = judgeFrom(options)
  return async (request, reply) => {
    const verdict = await judge(request)
    for (const [name, value] of verdict?.fields ?? []) {
      reply.header(name, LISTS.has(name) ? joined(reply.getHeader(name), value) : value)
    }
    if (verdict?.refusal === undefined) return undefined
    reply.code(429)
    // Fastify takes a reply that is returned as its sign to stop.
    reply.send(verdict.refusal)
    return reply
  }
}

const OPTIONS = optionNames<HttpRateLimitOptions<unknown>>({
  limiter: true,
  key: true,
  cost: true,
  names: true,
  failOpen: true,
})

interface Verdict {
  readonly fields: readonly (readonly [name: string, value: string])[]
  /** The body, if the answer is no. */
  readonly refusal?: string
}

/** Answers undefined where a request is not limited. */
function judgeFrom<Request>(
  options: HttpRateLimitOptions<Request>,
): (request: Request) => Promise<Verdict | undefined> {
  checkOptions(options, OPTIONS)
  const { limiter, key: keyOf, cost: costOf = () => 1, names, failOpen = false } = options
  if (!(limiter instanceof RateLimiter)) throw new InvalidArgumentError('limiter', limiter, 'a RateLimiter')
  checkFunction('key', keyOf)
  checkFunction('cost', costOf)
  checkBoolean('failOpen', failOpen)
  const headers = rateLimitHeaders(limiter, names)
  return async (request) => {
    const key = await keyOf(request)
    if (key === undefined) return undefined
    const cost = await costOf(request)
    const result = await limiter.consume(key, { cost }).catch((error: unknown) => {
      if (failOpen && error instanceof StoreError) return undefined
      throw error
    })
    if (result === undefined) return undefined
    // While a fallback answers, the policy is not what is in force.
    const fields = result.fallback
      ? []
      : ([
          ['RateLimit-Policy', headers.policy],
          ['RateLimit', headers.standing(result, cost)],
        ] as const)
    if (result.allowed) return { fields }
    return {
      fields: [...fields, ['Retry-After', headers.retryAfter(result)], ['Content-Type', 'application/problem+json']],
      refusal: headers.problem(result, cost),
    }
  }
}

/** Several limiters in a row each add to these. */
const LISTS = new Set(['RateLimit', 'RateLimit-Policy'])

const joined = (before: number | string | readonly string[] | undefined, value: string): string =>
  before === undefined ? value : `${Array.isArray(before) ? before.join(', ') : before}, ${value}`
