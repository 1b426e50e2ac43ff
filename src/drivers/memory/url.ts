import { InvalidArgumentError } from '../../core/errors.ts'
import { redactedUrl } from '../../core/secrets.ts'
import { decoded, refuseControlCharacters } from '../shared/url.ts'

/** The name in `memory:name`. Percent-encoding is undone once, as in every other URL. */
export function memoryName(url: string): string {
  refuseControlCharacters(url)
  const text = url.slice('memory:'.length)
  if (text.startsWith('//') || /[?#]/.test(text)) {
    throw new InvalidArgumentError('url', redactedUrl(url), 'memory: or memory:name, without // and parameters')
  }
  return decoded('url name', text)
}
