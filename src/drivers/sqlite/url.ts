import { isStorable } from '../../core/arguments.ts'
import { InvalidArgumentError, StoreError } from '../../core/errors.ts'
import { redactedUrl } from '../../core/secrets.ts'
import { decoded, refuseControlCharacters } from '../shared/url.ts'

/**
 * The path in `sqlite:relative/path`, `sqlite:/absolute/path` or `sqlite:///absolute/path`, percent-encoding undone
 * once. Undefined for `sqlite:` alone. Throws `InvalidArgumentError` for everything else.
 */
export function sqlitePath(url: string, platform: NodeJS.Platform = process.platform): string | undefined {
  refuseControlCharacters(url)
  const refusal = (rule: string): Error => new InvalidArgumentError('url', redactedUrl(url), rule)
  const rest = url.slice('sqlite:'.length)
  if (rest === '') return undefined
  if (/[?#]/.test(rest)) throw refusal('without parameters: in a file name, ? is written %3F and # is written %23')
  if (/^file:/i.test(rest)) throw refusal('sqlite:relative/path or sqlite:/absolute/path, and no file: URL')
  if (/^\/\/(?!\/)/.test(rest)) {
    const name = /[@:]/.test(rest) ? '…' : rest.slice(2)
    throw refusal(`sqlite:${name} for a path in the working folder, or sqlite:///${name} for one from the root`)
  }
  const path = decoded('url path', rest.replace(/^\/\/(?=\/)/, ''))
  if (path === ':memory:' || path === '/:memory:') throw new StoreError(IN_MEMORY, { retryable: false })
  if (!isStorable(path) || path.endsWith('/')) {
    throw new InvalidArgumentError('url path', path, 'the path of a file, without NUL')
  }
  return platform === 'win32' ? path.replace(/^\/(?=[A-Za-z]:)/, '') : path
}

export const IN_MEMORY =
  'a SQLite database in memory excludes no other process; use memory: for locks within one process'

/** The URL of an absolute path. */
export const sqliteUrl = (path: string): string =>
  // biome-ignore lint/suspicious/noControlCharactersInRegex: a folder's name may have them, a URL may not
  `sqlite:${path.replace(/[%?#\u0000-\u001f\u007f]/g, encodeURIComponent)}`
