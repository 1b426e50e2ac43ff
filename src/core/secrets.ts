/**
 * A URL as an error may show it: errors are logged, and a log is no place for a password. A password may contain
 * anything, so what precedes the last `@` is hidden, and so is everything of which it is not certain what it is: a URL
 * without its `@host` ends with the password, and parameters and paths may be part of one.
 */
export function redactedUrl(url: unknown): unknown {
  if (typeof url !== 'string' || url === '') return url
  const [, scheme = '', slashes = '', rest = ''] = /^([a-z][a-z\d+.-]*:)?(\/\/)?(.*)$/is.exec(url) ?? []
  // A path, in which an @ is no more than a letter, unless it looks like the URL of a server.
  const isPath = slashes === '' || rest.startsWith('/') || !/[@:]/.test(rest)
  if (/^sqlite:$/i.test(scheme) && isPath) return `${scheme}${slashes}${rest.replace(/[?#].*$/s, '?…')}`
  const at = rest.lastIndexOf('@')
  const [authority = ''] = /^[^/?#]*/.exec(rest.slice(at + 1)) ?? []
  const [, host, port = ''] = /^(\[[\da-f:.]+\]|[\w.-]+)(:\d{1,5})?$/i.exec(authority) ?? []
  if (at !== -1) return `${scheme}${slashes}…@${host === undefined ? '…' : host + port}`
  return `${scheme}${slashes}${slashes === '' || host === undefined ? '…' : host}`
}

/**
 * Removes the login from URLs in a text, and what a Redis server repeats of a command that it does not know: of AUTH,
 * that is the password. The login of an example stays: it says what a URL looks like.
 */
export const withoutSecrets = (text: string): string =>
  text
    .replaceAll(/\b([a-z][a-z\d+.-]*:\/\/)(?!user:password@\w+(?![^\s]*@))\S*@/gi, '$1…@')
    .replaceAll(/(args beginning with: ).*/gi, '$1…')

/** A value as an error may show it, whatever it was passed for: a URL stands in the place of the options, too. */
export const withoutLogin = (value: unknown): unknown =>
  typeof value === 'string' && /^\s*[a-z][a-z\d+.-]*:\/\/.*@/is.test(value) ? redactedUrl(value) : value
