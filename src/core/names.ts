import { InvalidArgumentError } from './errors.ts'
import { MAX_HOLDER_ID_LENGTH, MAX_NAME_LENGTH } from './limits.ts'

/**
 * A lock name has 1 to 255 UTF-16 code units of well-formed text without NUL. `VARCHAR(255)`, a Redis key and a UTF-8
 * file can all store that, so that a name is valid on every store or on none.
 *
 * @throws `InvalidArgumentError`
 */
export function checkLockName(lockName: unknown, argument = 'lockName'): asserts lockName is string {
  checkText(argument, lockName, MAX_NAME_LENGTH)
}

export function checkHolderId(holderId: unknown): asserts holderId is string {
  checkText('holderId', holderId, MAX_HOLDER_ID_LENGTH)
}

export function checkText(argument: string, value: unknown, maxLength: number): asserts value is string {
  if (typeof value !== 'string' || value.length === 0 || value.length > maxLength || !isStorable(value)) {
    const rule = `a string of 1 to ${maxLength} characters, without NUL and without lone surrogates`
    throw new InvalidArgumentError(argument, value, rule)
  }
}

/** PostgreSQL cannot store NUL. A lone surrogate has no UTF-8 form, so two different names would become one. */
export const isStorable = (text: string): boolean => !text.includes('\0') && text.isWellFormed()
