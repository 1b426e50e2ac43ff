import { checkBoolean, checkFunction } from '../../core/arguments.ts'
import { warnOfFault } from '../../core/call-listener.ts'
import { InvalidArgumentError, StoreError } from '../../core/errors.ts'
import { checkOptions, isArray, isReadable, optionNames } from '../../core/options.ts'
import type { RateLimitOptions, RateLimitResult } from './limits.ts'
import { RateLimiter } from './rate-limiter.ts'

export interface HttpRateLimitOptions<Request> {
  limiter: RateLimiter
  /** To whom the limits apply, such as `api:${user}` or the client's address. Undefined: the request is not limited. */
  key: (request: Request) => string | undefined | Promise<string | undefined>
  /**
   * How many units a request takes.
   *
   * @default 1 for each request
   */
  cost?: (request: Request) => number | Promise<number>
  /**
   * The names of the limits in the header fields, one for each.
   *
   * @default `default` for one limit, `per-60s` and the like for several
   */
  names?: readonly string[]
  /**
   * What happens when the store cannot be reached. True: requests pass, without header fields. False: they fail with
   * the `StoreError`.
   *
   * @default false
   */
  failOpen?: boolean
}

/** The members of a request that node:http, Connect and Express have, for `key` and `cost`. */
export interface NodeRequest {
  readonly headers: Readonly<Record<string, string | string[] | undefined>>
  readonly method?: string | undefined
  readonly url?: string | undefined
  readonly ip?: string | undefined
}

/** The members of a response of node:http, Connect and Express that are used. */
export interface NodeResponse {
  statusCode: number
  readonly headersSent?: boolean | undefined
  getHeader(name: string): number | string | readonly string[] | undefined
  setHeader(name: string, value: string): unknown
  end(body: string): unknown
}

/** The members of a Fastify reply that are used. */
export interface FastifyReplyLike {
  getHeader(name: string): number | string | readonly string[] | undefined
  header(name: string, value: string): unknown
  code(status: number): unknown
  send(body: string): unknown
}

/**
 * Wraps a fetch-style handler, `(request) => response`, and limits its requests. Each response has the fields
 * `RateLimit` and `RateLimit-Policy`. A request over the limit gets a 429 with `Retry-After` and a problem document;
 * the handler is not called.
 *
 * @throws `InvalidArgumentError`. The returned handler rejects with what the handler, `key`, `cost` or the limiter
 * throws
 *
 * @example
 * ```ts
 * const limiter = new RateLimiter({ url: 'redis://localhost:6379', limits: { limit: 100, periodSeconds: 60 } })
 * const handler = rateLimitFetch((request: Request) => Response.json({ ok: true }), {
 *   limiter,
 *   key: (request) => `api:${request.headers.get('x-user')}`,
 * })
 * ```
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
    // A response that cannot be copied, such as an upgrade to a WebSocket, is passed on unchanged.
    if (verdict === undefined || response.status < 200) return response
    // The headers of some responses, such as a redirect, are immutable: so it is copied.
    const own = new Response(response.body, response)
    for (const [name, value] of verdict.fields) {
      if (LISTS.has(name)) own.headers.append(name, value)
      else own.headers.set(name, value)
    }
    return own
  }
}

/**
 * Middleware for Express, Connect and all others with `(request, response, next)` of node:http. It does what
 * `rateLimitFetch` does. Errors are passed to `next`, which is called at most once. If `next` itself throws, that is a
 * warning, and the response is a 500 unless one was already sent.
 *
 * @throws `InvalidArgumentError`
 *
 * @example
 * ```ts
 * app.use(rateLimitExpress({ limiter, key: (request) => request.ip }))
 * ```
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
        // It throws if a later handler fails before its first await and nothing in between catches it.
        warnOfFault('next, called by rateLimitExpress,', thrown)
        if (response.headersSent) return
        response.statusCode = 500
        response.end('')
      }
    }
    const pass = (verdict: Verdict | undefined): boolean => {
      // Another middleware, such as a timeout, may have responded while the store was being asked.
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

/**
 * A hook for Fastify, for an app or a single route. It does what `rateLimitFetch` does.
 *
 * @throws `InvalidArgumentError`. The hook rejects with what `key`, `cost` or the limiter throws
 *
 * @example
 * ```ts
 * app.addHook('onRequest', rateLimitFastify({ limiter, key: (request) => request.ip }))
 * ```
 */
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
    // A returned reply tells Fastify to stop.
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
  /** The body of a refusal. */
  readonly refusal?: string
}

/** The returned function resolves with undefined for a request that is not limited. */
function judgeFrom<Request>(
  options: HttpRateLimitOptions<Request>,
): (request: Request) => Promise<Verdict | undefined> {
  checkOptions(options, OPTIONS)
  const { limiter, key: keyOf, cost: costOf = () => 1, names, failOpen = false } = options
  if (!isReadable(limiter) || !(limiter instanceof RateLimiter)) {
    throw new InvalidArgumentError('limiter', limiter, 'a RateLimiter')
  }
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
    // While a fallback answers, this policy does not apply.
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

/** Several limiters in a row each append to these fields. */
const LISTS = new Set(['RateLimit', 'RateLimit-Policy'])

const joined = (before: number | string | readonly string[] | undefined, value: string): string =>
  before === undefined ? value : `${Array.isArray(before) ? before.join(', ') : before}, ${value}`

/** The HTTP header fields of a limiter, as in draft-ietf-httpapi-ratelimit-headers-11. */
export interface RateLimitHeaders {
  /** `RateLimit-Policy`: the same in every response. */
  readonly policy: string
  /** `RateLimit`: what is left of each limit; in a refusal, only of the exceeded limits. */
  standing(result: RateLimitResult, cost: number): string
  /** `Retry-After`, in whole seconds. */
  retryAfter(result: RateLimitResult): string
  /** The body of a refusal, as `application/problem+json`. */
  problem(result: RateLimitResult, cost: number): string
}

export function rateLimitHeaders(limiter: RateLimiter, names?: readonly string[]): RateLimitHeaders {
  const { limits } = limiter
  const quoted = checkNames(names ?? limits.map(nameOf), limits.length).map((name) => `"${name}"`)
  // A fallback has other limits.
  const exceeded = (result: RateLimitResult, cost: number): number[] =>
    (result.fallback ? [] : limits).flatMap((_, at) =>
      !result.allowed && (result.limits[at]?.remaining ?? 0) >= cost ? [] : [at],
    )
  return {
    policy: limits.map((limit, at) => `${quoted[at]}${policyOf(limit)}`).join(', '),
    standing: (result, cost) =>
      exceeded(result, cost)
        .map((at) => {
          const { remaining = 0, nextAfterSeconds = 0 } = result.limits[at] ?? {}
          return `${quoted[at]};r=${remaining};t=${wholeSeconds(nextAfterSeconds)}`
        })
        .join(', '),
    retryAfter: ({ retryAfterSeconds }) => `${wholeSeconds(retryAfterSeconds)}`,
    problem: (result, cost) =>
      JSON.stringify({
        type: 'https://iana.org/assignments/http-problem-types#quota-exceeded',
        title: 'Request cannot be satisfied as assigned quota has been exceeded',
        'violated-policies': exceeded(result, cost).map((at) => quoted[at]?.slice(1, -1)),
      }),
  }
}

/**
 * The field has only whole seconds: 10 in 0.1 s become 100 in 1 s. A burst other than the limit is our own parameter.
 */
function policyOf({ limit, periodSeconds, burst }: Required<RateLimitOptions>): string {
  const window = wholeSeconds(periodSeconds)
  const quota = Math.floor((limit * window) / periodSeconds + 1e-9)
  return `;q=${quota};w=${window}${burst === limit ? '' : `;holdfast-burst=${burst}`}`
}

const nameOf = ({ periodSeconds }: RateLimitOptions, _: number, { length }: { length: number }): string =>
  length === 1 ? 'default' : `per-${periodSeconds}s`

/** Rounded up: a client that comes too early is refused again. */
const wholeSeconds = (seconds: number): number => Math.max(1, Math.ceil(seconds - 1e-9))

function checkNames(names: unknown, count: number): readonly string[] {
  const isName = (name: unknown): boolean => typeof name === 'string' && /^[ !#-[\]-~]+$/.test(name)
  if (!isArray(names) || names.length !== count || !names.every(isName)) {
    throw new InvalidArgumentError('names', names, `${count} names, of printable ASCII without quotes and backslashes`)
  }
  return names as string[]
}
