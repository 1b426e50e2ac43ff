import type { Authorize, DashboardUser } from './options.ts'

/** Why a request is refused. */
export interface RefusedRequest {
  readonly status: 400 | 401 | 403 | 421
  readonly reason: string
}

export type Viewer = { readonly user?: string }

/**
 * Checks in front of everything: the host, against DNS rebinding; the origin, against other sites; then `authorize`.
 */
export async function admit(
  request: Request,
  { hosts, authorize }: { hosts: readonly string[] | undefined; authorize: Authorize | 'none' },
): Promise<Viewer | RefusedRequest> {
  const host = hostOf(request)
  if (hosts !== undefined && !hosts.includes(host) && !hosts.includes(withoutPort(host))) {
    return {
      status: 421,
      reason: 'This dashboard does not answer under this host name. Add it with --allow-host, or to `hosts`.',
    }
  }
  if (isFromElsewhere(request, host)) return { status: 403, reason: 'This request comes from another site.' }
  const allowed = authorize === 'none' ? true : await authorize(request)
  if (isUser(allowed)) return { user: allowed.user }
  if (allowed === true) return {}
  return { status: 401, reason: 'You are not allowed to see this dashboard.' }
}

export const isRefused = (viewer: Viewer | RefusedRequest): viewer is RefusedRequest => 'status' in viewer

/** The `Host` header, which is what the browser believes. The URL's host is the server's idea where there is none. */
const hostOf = (request: Request): string => (request.headers.get('host') ?? new URL(request.url).host).toLowerCase()

const withoutPort = (host: string): string => host.replace(/:\d+$/, '')

/**
 * Whether a browser says that another site made it send this. A request that changes something must come from our own
 * page: a browser always sends `Origin` with it. A link to the page may be anywhere.
 */
function isFromElsewhere({ method, headers, mode }: Request, host: string): boolean {
  const origin = headers.get('origin')
  if (origin !== null) return hostOfOrigin(origin) !== host
  const site = headers.get('sec-fetch-site')
  if (method !== 'GET') return site !== 'same-origin'
  const isNavigation = headers.get('sec-fetch-mode') === 'navigate' || mode === 'navigate'
  return site !== null && site !== 'same-origin' && site !== 'none' && !isNavigation
}

/** Only the host is compared. A proxy in front of the server may speak another scheme. */
function hostOfOrigin(origin: string): string | undefined {
  return URL.canParse(origin) ? new URL(origin).host.toLowerCase() : undefined
}

const isUser = (allowed: unknown): allowed is DashboardUser =>
  typeof allowed === 'object' && allowed !== null && typeof (allowed as DashboardUser).user === 'string'
