import { checkText, isStorable } from '../core/arguments.ts'
import { warnOfFault } from '../core/call-listener.ts'
import { InvalidArgumentError } from '../core/errors.ts'
import { MAX_NAME_LENGTH, MAX_TEMPLATES } from '../core/limits.ts'
import { isArray } from '../core/options.ts'

/**
 * Patterns such as `order:{id}`, where `{id}` is one or more characters except `:`, or a function that returns the
 * template of a name. The function may return undefined, for "other".
 */
export type Templates = readonly string[] | ((name: string) => string | undefined)

/** The label of every name that has no template. */
export const OTHER = 'other'

/**
 * Returns a function from the name of a lock, or the key of a rate limiter, to its template. It never throws, and has
 * at most `MAX_TEMPLATES` results and "other": names often contain what users type, and a series for each of them would
 * fill the memory of this process and of the metrics server.
 *
 * @throws `InvalidArgumentError`
 */
export function templateFinder(templates: unknown): (name: string) => string {
  if (templates === undefined) return () => OTHER
  if (typeof templates === 'function') return bounded(templates as (name: string) => unknown)
  if (!isArray(templates) || templates.length > MAX_TEMPLATES) {
    throw new InvalidArgumentError('templates', templates, `a function or a list of at most ${MAX_TEMPLATES} patterns`)
  }
  const patterns = templates.map((template, index) => patternFrom(template, `templates[${index}]`))
  return (name) => {
    for (const pattern of patterns) if (matches(pattern, name)) return pattern.template
    return OTHER
  }
}

/** For a user's function, which may return anything, and as many different texts as there are names. */
function bounded(templateOf: (name: string) => unknown): (name: string) => string {
  const known = new Set<string>()
  let hasWarned = false
  return (name) => {
    try {
      const template = templateOf(name)
      if (typeof template !== 'string') return OTHER
      if (known.has(template)) return template
      const isLabel = template !== '' && template.length <= MAX_NAME_LENGTH && isStorable(template)
      if (!isLabel || known.size >= MAX_TEMPLATES) return OTHER
      known.add(template)
      return template
    } catch (error) {
      // Once: a warning for each event would be a flood.
      if (!hasWarned) warnOfFault('the function of `templates`', error)
      hasWarned = true
      return OTHER
    }
  }
}

interface Pattern {
  readonly template: string
  /** The text before the first placeholder. Most names that do not match do not begin with it. */
  readonly prefix: string
  /** For each part between colons, the texts around its placeholders. One text: no placeholder. */
  readonly parts: readonly (readonly string[])[]
}

function patternFrom(template: unknown, argument: string): Pattern {
  checkText(argument, template, MAX_NAME_LENGTH)
  if (/\}\{/.test(template.replaceAll(PLACEHOLDER, '{}'))) {
    throw new InvalidArgumentError(argument, template, 'a pattern with a text between two placeholders')
  }
  const [prefix = ''] = template.split(PLACEHOLDER)
  return { template, prefix, parts: template.split(':').map((part) => part.split(PLACEHOLDER)) }
}

const PLACEHOLDER = /\{[\w-]*\}/g

function matches({ prefix, parts }: Pattern, name: string): boolean {
  if (!name.startsWith(prefix)) return false
  const nameParts = name.split(':')
  return parts.length === nameParts.length && parts.every((texts, at) => matchesPart(texts, nameParts[at] as string))
}

/**
 * Takes each text at its first place, which is enough where only texts are between the placeholders. Not a regular
 * expression: with several placeholders, a hostile name would make it try every way to divide the name.
 */
function matchesPart([first = '', ...rest]: readonly string[], part: string): boolean {
  const last = rest.pop()
  if (last === undefined) return part === first
  if (!part.startsWith(first) || !part.endsWith(last)) return false
  let at = first.length
  for (const text of rest) {
    const found = part.indexOf(text, at + 1)
    if (found === -1) return false
    at = found + text.length
  }
  return part.length - last.length > at
}
