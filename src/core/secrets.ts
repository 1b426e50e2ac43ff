/**
 * A URL that an error message may contain. Errors are logged, and a log must not contain a password. A password may
 * contain any character, so everything before the last `@` is hidden, and everything whose role is uncertain: a URL
 * without `@host` may end with the password, and what looks like a parameter or a path may be a part of it.
 */
export function redactedUrl(url: unknown): unknown {
  if (typeof url !== 'string' || url === '') return url
  const [, scheme = '', slashes = '', rest = ''] = /^([a-z][a-z\d+.-]*:)?(\/\/)?(.*)$/is.exec(url) ?? []
  // In a path, an @ has no special meaning. What looks like the URL of a server is not treated as a path.
  const isPath = slashes === '' || rest.startsWith('/') || !/[@:]/.test(rest)
  if (/^sqlite:$/i.test(scheme) && isPath) return `${scheme}${slashes}${rest.replace(/[?#].*$/s, '?…')}`
  const at = rest.lastIndexOf('@')
  const [authority = ''] = /^[^/?#]*/.exec(rest.slice(at + 1)) ?? []
  const [, host, port = ''] = /^(\[[\da-f:.]+\]|[\w.-]+)(:\d{1,5})?$/i.exec(authority) ?? []
  if (at !== -1) return `${scheme}${slashes}…@${host === undefined ? '…' : host + port}`
  return `${scheme}${slashes}${slashes === '' || host === undefined ? '…' : host}`
}

/**
 * Removes user name and password from all URLs in a text, with the parameters of such a URL, and parameters that name a
 * password from every URL. Also removes the arguments that a Redis server quotes when it does not know a command: for
 * AUTH, they are the password. The example login `user:password` stays, because it shows what a URL looks like.
 */
export const withoutSecrets = (text: string): string =>
  text
    .replaceAll(/\b([a-z][a-z\d+.-]*:\/\/)(?!user:password@\w+(?![^\s]*@))\S*@/gi, '$1…@')
    .replaceAll(/(:\/\/…@[^\s?#]*)[?#]\S*?(?=["']?(?:\s|$))/g, '$1?…')
    .replaceAll(/([?&;]\w*(?:pass|pwd|secret)\w*=)[^&;\s]*?(?=["']?(?:[&;\s]|$))/gi, '$1…')
    .replaceAll(/(args beginning with: ).*/gi, '$1…')

/** Redacts any value that looks like a URL with a password: a URL may be passed in place of another argument. */
export const withoutLogin = (value: unknown): unknown =>
  typeof value === 'string' && WITH_PASSWORD.test(value) ? redactedUrl(value) : value

const WITH_PASSWORD = /^\s*[a-z][a-z\d+.-]*:\/\/.*(?:@|[?&;]\w*(?:pass|pwd|secret)\w*=)/is
