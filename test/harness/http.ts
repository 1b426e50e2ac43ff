import { once } from 'node:events'
import { type IncomingMessage, request } from 'node:http'

interface HttpRequest {
  readonly port: number
  readonly path: string
  readonly method?: string
  /** `fetch` does not allow another one than that of the URL. */
  readonly host?: string
  readonly headers?: Record<string, string>
}

/** The status of one request to this machine, with any headers. The body is not read. */
export async function askHttp({ port, path, method = 'GET', host, headers }: HttpRequest): Promise<{ status: number }> {
  const sent = request({
    host: '127.0.0.1',
    port,
    path: path.startsWith('/') ? path : `/${path}`,
    method,
    headers: { ...headers, ...(host !== undefined && { host }) },
  }).end()
  const [response] = (await once(sent, 'response')) as [IncomingMessage]
  response.destroy()
  return { status: response.statusCode ?? 0 }
}
