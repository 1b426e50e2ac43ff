import { InvalidArgumentError } from '../../core/errors.ts'
import { MAX_NAME_LENGTH } from '../../core/limits.ts'
import { checkLockName, checkText, isStorable } from '../../core/names.ts'

/** Returns the lock name of a call. Throws `InvalidArgumentError`. */
export type NameOfCall = (args: readonly unknown[]) => string

/**
 * Reads a template such as `order:{0}` or `order:{0.id}`. `where` is the method, for errors.
 *
 * @throws `InvalidArgumentError`. So does the returned function, for an argument that makes no good name
 */
export function nameFromTemplate(template: unknown, where: string): NameOfCall {
  checkText(`the template of @Locked on ${where}`, template, MAX_NAME_LENGTH)
  // Split by a pattern with a group: texts are at even places, placeholders at odd ones.
  const parts = template.split(PLACEHOLDER)
  if (parts.some((part, at) => at % 2 === 0 && /[{}]/.test(part))) {
    const rule = 'made of text and placeholders such as {0} and {0.id}; use a function for a name with other braces'
    throw new InvalidArgumentError(`the template of @Locked on ${where}`, template, rule)
  }
  return (args) => {
    const texts = parts.map((part, at) => (at % 2 === 0 ? part : textAt(args, part, where)))
    return checkedName(texts.join(''), where)
  }
}

/** Throws `InvalidArgumentError`. */
export function checkedName(name: unknown, where: string): string {
  checkLockName(name, `the lock name of ${where}`)
  return name
}

const PLACEHOLDER = /\{(\d{1,2}(?:\.[\p{ID_Start}$_][\p{ID_Continue}$]*)*)\}/u

/**
 * Only texts and whole numbers make a name. An object would become `[object Object]`, and a missing value `undefined`:
 * one lock for all of them.
 */
function textAt(args: readonly unknown[], path: string, where: string): string {
  const [index, ...properties] = path.split('.')
  const value = properties.reduce<unknown>(
    (inner, property) => (inner as Record<string, unknown> | null | undefined)?.[property],
    args[Number(index)],
  )
  if (typeof value === 'bigint' || Number.isSafeInteger(value)) return String(value)
  if (typeof value !== 'string' || !isGoodText(value))
    throw new InvalidArgumentError(`{${path}} of ${where}`, value, RULE)
  return value
}

/** Control characters and line ends would forge lines in logs, and in what the command line shows. */
const isGoodText = (text: string): boolean =>
  text.length > 0 && text.length <= MAX_NAME_LENGTH && isStorable(text) && !/[\p{Cc}\p{Zl}\p{Zp}]/u.test(text)

const RULE =
  `a string of 1 to ${MAX_NAME_LENGTH} characters without control characters and lone surrogates, ` +
  'a safe integer or a bigint, to be part of a lock name'
