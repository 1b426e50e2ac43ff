import { warnOfFault } from '../core/call-listener.ts'

/** The members of a request that node:http, Connect and Express have. */
export interface NodeRequest extends AsyncIterable<unknown> {
  readonly method?: string | undefined
  readonly url?: string | undefined
  /** Express: the URL before the path of the mount was removed from it. */
  readonly originalUrl?: string
  readonly headers: Readonly<Record<string, string | string[] | undefined>>
  readonly readableEnded: boolean
  /** Express: what a parser has made of the body. */
  readonly body?: unknown
}

/** The members of a response that node:http, Connect and Express have. */
export interface NodeResponse {
  readonly headersSent: boolean
  writeHead(status: number, headers?: Record<string, string | string[]>): NodeResponse
  write(chunk: Uint8Array): boolean
  end(): unknown
  destroy(): unknown
  once(event: 'drain' | 'close', listener: () => void): unknown
  off(event: 'drain' | 'close', listener: () => void): unknown
}

/** A handler for node:http, Express and Connect. It answers every request that it gets. */
export type NodeHandler = (request: NodeRequest, response: NodeResponse) => void

/**
 * Makes a handler for Node's `http` server of one for web requests: `app.use('/locks', toNodeHandler(dashboard))` in
 * Express, `createServer(toNodeHandler(dashboard))` without a framework. A stream ends when its client has gone.
 */
export function toNodeHandler(handler: (request: Request) => Response | Promise<Response>): NodeHandler {
  return (request, response) => {
    void answer(handler, request, response).catch((error: unknown) => {
      warnOfFault('the handler of toNodeHandler', error)
      // What was sent so far cannot be taken back.
      if (response.headersSent) response.destroy()
      else response.writeHead(500).end()
    })
  }
}

async function answer(
  handler: (request: Request) => Response | Promise<Response>,
  incoming: NodeRequest,
  outgoing: NodeResponse,
): Promise<void> {
  const gone = new AbortController()
  outgoing.once('close', () => gone.abort())
  const request = await requestFrom(incoming, gone.signal)
  if (request === undefined) {
    outgoing.writeHead(400).end()
    return
  }
  const { status, headers, body } = await handler(request)
  // Otherwise a stream for a client that has gone would never end.
  if (gone.signal.aborted) return body?.cancel()
  outgoing.writeHead(status, headersOf(headers))
  if (body === null) {
    outgoing.end()
    return
  }
  const reader = body.getReader()
  gone.signal.addEventListener('abort', () => void reader.cancel().catch(() => undefined))
  for (;;) {
    const { done, value } = await reader.read()
    if (done || gone.signal.aborted) break
    if (!outgoing.write(value) && !gone.signal.aborted) await drained(outgoing)
  }
  outgoing.end()
}

/** Express removes the path of the mount from `url`. Undefined for a request that no browser sends. */
async function requestFrom(incoming: NodeRequest, signal: AbortSignal): Promise<Request | undefined> {
  const { method = 'GET', headers, originalUrl, url = '/' } = incoming
  // HTTP/2 has no `Host`.
  const host = headers['host'] ?? headers[':authority'] ?? 'localhost'
  const address = `http://${host}/${(originalUrl ?? url).replace(/^\/+/, '')}`
  if (!URL.canParse(address) || !METHODS.has(method)) return undefined
  let body: Uint8Array | undefined
  try {
    if (method !== 'GET' && method !== 'HEAD') body = await bodyOf(incoming)
  } catch {
    return undefined // its client has gone
  }
  const pairs = Object.entries(headers).flatMap(([name, value]): [string, string][] =>
    value === undefined || name.startsWith(':') ? [] : [[name, Array.isArray(value) ? value.join(', ') : value]],
  )
  return new Request(address, { method, headers: pairs, signal, ...(body && { body }) })
}

/** At most as much as any request needs. The handler rejects a longer one by what is left of it. */
async function bodyOf(incoming: NodeRequest): Promise<Uint8Array> {
  // `express.json()` has read it already.
  if (incoming.readableEnded && incoming.body !== undefined) return Buffer.from(JSON.stringify(incoming.body))
  const chunks: Uint8Array[] = []
  let length = 0
  for await (const chunk of incoming as AsyncIterable<Uint8Array>) {
    length += chunk.length
    if (length <= MAX_BODY_BYTES) chunks.push(chunk)
  }
  return Buffer.concat(chunks)
}

function headersOf(headers: Headers): Record<string, string | string[]> {
  const cookies = headers.getSetCookie()
  return { ...Object.fromEntries(headers), ...(cookies.length > 0 && { 'set-cookie': cookies }) }
}

const drained = (outgoing: NodeResponse): Promise<void> =>
  new Promise((resolve) => {
    const done = (): void => {
      outgoing.off('drain', done)
      outgoing.off('close', done)
      resolve()
    }
    outgoing.once('drain', done)
    outgoing.once('close', done)
  })

/** `Request` throws for some others. */
const METHODS = new Set(['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS'])
const MAX_BODY_BYTES = 128 * 1_024
