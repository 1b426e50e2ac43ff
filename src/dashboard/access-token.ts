import { createHmac, randomBytes, timingSafeEqual } from 'node:crypto'
import type { Dashboard } from './dashboard.ts'
import type { DashboardUser } from './options.ts'
import { respond, sentence } from './responses.ts'

/**
 * Access by a random token in the URL, for a dashboard without users. The first request with the token sets a cookie,
 * which a script cannot read and which no other site can make the browser send. All others need the cookie.
 */
export function createAccessToken(cookieName: string): AccessToken {
  const token = randomBytes(24).toString('base64url')
  const secret = randomBytes(32)
  // Both sides are hashed, because timingSafeEqual needs texts of one length.
  const digest = (text: string): Buffer => createHmac('sha256', secret).update(text).digest()
  const session = digest('session').toString('base64url')
  const isEqual = (text: string, expected: string): boolean => timingSafeEqual(digest(text), digest(expected))
  const hasCookie = (request: Request): boolean =>
    cookiesOf(request).some(([name, value]) => name === cookieName && isEqual(value, session))
  return {
    token,
    isValid: hasCookie,
    signIn(request) {
      const url = new URL(request.url)
      const given = url.searchParams.get('token')
      if (given === null || request.method !== 'GET') return undefined
      if (!isEqual(given, token)) return sentence(WRONG, 401)
      // A page instead of a redirect: after a click on a link elsewhere, a redirect would not carry a strict cookie.
      return respond(
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="0; url=./">' +
          '<title>Holdfast</title><p><a href="./">Open the dashboard</a></p></html>',
        'text/html; charset=utf-8',
        200,
        { 'set-cookie': `${cookieName}=${session}; HttpOnly; SameSite=Strict; Path=/` },
      )
    },
  }
}

export interface AccessToken {
  readonly token: string
  isValid(request: Request): boolean
  /** The answer to a request with a token in its URL. Undefined for all others. */
  signIn(request: Request): Response | undefined
}

/**
 * The dashboard behind such a token. `create` gets the `authorize` that the dashboard needs.
 */
export function withAccessToken(
  access: AccessToken,
  user: DashboardUser,
  create: (authorize: (request: Request) => DashboardUser | false) => Dashboard,
): Dashboard {
  const dashboard = create((request) => access.isValid(request) && user)
  const handle = async (request: Request): Promise<Response> => {
    const response = await dashboard(request)
    // The host has been checked before: a page of another site cannot try tokens.
    const signedIn = access.signIn(request)
    if (response.status === 401) return signedIn ?? sentence(NEEDED, 401)
    if (!response.ok || !signedIn?.ok) return response
    // Also for who has the cookie already: the token must not stay in the address of the page.
    await response.body?.cancel()
    return signedIn
  }
  return Object.assign(handle, { close: () => dashboard.close() })
}

function cookiesOf(request: Request): [string, string][] {
  return (request.headers.get('cookie') ?? '').split(';').map((pair) => {
    const at = pair.indexOf('=')
    return [pair.slice(0, at).trim(), pair.slice(at + 1).trim()]
  })
}

const NEEDED = 'Open the URL that holdfast dashboard has printed. It contains the access token.'
const WRONG = 'This access token is wrong. holdfast dashboard prints a new one each time it starts.'
