import { InvalidArgumentError } from '../../core/errors.ts'
import { nearestName } from '../../core/options.ts'
import { redactedUrl } from '../../core/secrets.ts'

/**
 * The parts of a store's URL. A part that a driver does not understand is refused: if it were ignored, two clients
 * could lock in two places. No error shows a part that may be a password.
 */
export interface UrlParts {
  readonly scheme: string
  /** Decoded. An empty one counts as none. */
  readonly username: string | undefined
  readonly password: string | undefined
  /** The hosts between `@` and the path, not decoded, at least one. A missing one is the empty string. */
  readonly hosts: readonly string[]
  /** The text after the first slash, not decoded. An empty one counts as none. */
  readonly path: string | undefined
  /** The path as an error may show it. If `@host` was forgotten, it may be the end of a password with a slash in it. */
  readonly shownPath: string
  readonly parameters: readonly Parameter[]
}

export interface Parameter {
  readonly name: string
  readonly value: string
  /** As the caller wrote it. */
  readonly raw: string
}

/** Splits `scheme://user:password@host,host/path?name=value`. Throws `InvalidArgumentError`. */
export function urlParts(url: string, example: string): UrlParts {
  refuseControlCharacters(url)
  const parts = /^([^:]+):\/\/([^/?#]*)(?:\/([^?#]*))?(?:\?([^#]*))?(#.*)?$/s.exec(url)
  if (parts === null) throw new InvalidArgumentError('url', redactedUrl(url), `a URL such as ${example}`)
  const [, scheme = '', authority = '', path = '', search = '', fragment] = parts
  // Checked before an error names any of these parts: a password with a slash in it ends up here.
  if (`${path}?${search}`.includes('@') || fragment !== undefined) {
    const rule = 'percent-encoded wherever a user name, password, path or parameter contains one of / ? # @'
    throw new InvalidArgumentError('url', redactedUrl(url), rule)
  }
  const at = authority.lastIndexOf('@')
  const login = authority.slice(0, Math.max(at, 0))
  const colon = login.includes(':') ? login.indexOf(':') : login.length
  return {
    scheme: scheme.toLowerCase(),
    username: decoded('url user name', login.slice(0, colon)) || undefined,
    password: decoded('url password', login.slice(colon + 1)) || undefined,
    hosts: authority.slice(at + 1).split(','),
    path: path || undefined,
    shownPath: at === -1 && authority.includes(':') ? '…' : path,
    parameters: urlParameters(search),
  }
}

/** The parameters after the question mark. Each name may occur once. */
export function urlParameters(search: string): readonly Parameter[] {
  const parameters = search === '' ? [] : search.split('&').map(parameterOf)
  for (const [index, { name, raw }] of parameters.entries()) {
    if (parameters.findIndex((each) => each.name === name) !== index) {
      throw new InvalidArgumentError(`url parameter ${shownName({ name, raw })}`, 'given twice', 'given only once')
    }
  }
  return parameters
}

function parameterOf(raw: string): Parameter {
  const equals = raw.includes('=') ? raw.indexOf('=') : raw.length
  const name = decoded('the name of a url parameter', raw.slice(0, equals))
  return { name, value: decoded(`url parameter ${shownName({ name, raw })}`, raw.slice(equals + 1)), raw }
}

/** The values of our parameters, by name. Throws for an unknown one. */
export function knownParameters<Name extends string>(
  parameters: readonly Parameter[],
  known: readonly Name[],
): Partial<Record<Name, string>> {
  const values: Partial<Record<string, string>> = {}
  for (const { name, value, raw } of parameters) {
    if (!known.some((each) => each === name)) {
      const rule = known.length === 0 ? 'left out: this URL takes none' : `one of ${known.join(', ')}`
      const meant = nearestName(name, known)
      const hint = meant === undefined ? rule : `${rule} (did you mean ${meant}?)`
      throw new InvalidArgumentError('url parameter', shownName({ name, raw }), hint)
    }
    // In a form, a plus sign means a space; in a URL it does not. Clients that disagree would lock in two places.
    if (raw.includes('+')) throw new InvalidArgumentError(`url parameter ${name}`, value, 'without +: write %2B or %20')
    values[name] = value
  }
  return values
}

/** Hides what may be a password: one with a question mark ends up here if it is not encoded and `@host` is missing. */
export const shownName = ({ name, raw }: Pick<Parameter, 'name' | 'raw'>): string =>
  name === '' || (raw.includes('=') && /^\w+$/.test(name)) ? name : '…'

export function booleanParameter(name: string, value: string | undefined): boolean | undefined {
  if (value === undefined) return undefined
  if (value === 'true' || value === '1') return true
  if (value === 'false' || value === '0') return false
  throw new InvalidArgumentError(`url parameter ${name}`, value, 'true, false, 1 or 0')
}

export function secondsParameter(name: string, value: string | undefined, most: number): number | undefined {
  if (value === undefined) return undefined
  const seconds = /^\d+(?:\.\d+)?$/.test(value) ? Number(value) : Number.NaN
  if (seconds >= 0.001 && seconds <= most) return seconds
  throw new InvalidArgumentError(`url parameter ${name}`, value, `a number of seconds from 0.001 to ${most}`)
}

export interface HostPort {
  /** In the form that every client takes: an IPv6 address without brackets, a name in lower case. */
  readonly host: string
  readonly port: number
}

/** `name`, `name:port`, `192.0.2.1:port`, `[::1]:port`. */
export function hostPort(text: string, defaultPort: number): HostPort {
  const [, name = '', port] = /^(\[[\da-fA-F:.]+\]|[^:[\]%@\s]+)(?::(.*))?$/.exec(text) ?? []
  const host = name === '' ? undefined : canonicalHost(name)
  if (host === undefined) {
    throw new InvalidArgumentError('url host', unlessSecret(text), 'a host name or an address, IPv6 in brackets')
  }
  return { host, port: port === undefined ? defaultPort : checkPort(port) }
}

export function checkPort(port: string): number {
  const number = /^\d{1,5}$/.test(port) ? Number(port) : 0
  if (number >= 1 && number <= 65_535) return number
  throw new InvalidArgumentError('url port', unlessSecret(port), 'a whole number from 1 to 65535')
}

/** If `@host` was forgotten, this may be the password. A port has at most five digits; anything else is hidden. */
const unlessSecret = (text: string): string => (/^\d{0,5}$/.test(text) ? text : '…')

/** One spelling for each host: names in lower case, addresses in their canonical form. */
function canonicalHost(name: string): string | undefined {
  try {
    return new URL(`http://${name}/`).hostname.replace(/^\[(.*)\]$/, '$1')
  } catch {
    return undefined
  }
}

/** Percent-encoding is decoded once, and only here. */
export function decoded(what: string, text: string): string {
  try {
    return decodeURIComponent(text)
  } catch {
    // The value may be a password.
    throw new InvalidArgumentError(what, '…', 'percent-encoded UTF-8: a percent sign itself is written %25')
  }
}

/** A line break at the end of an environment variable is removed by some parsers and kept by others. */
export function refuseControlCharacters(url: string): void {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what it looks for
  if (!/[\u0000-\u001f\u007f]/.test(url) && url.isWellFormed()) return
  throw new InvalidArgumentError('url', redactedUrl(url), 'without control characters and lone surrogates')
}
