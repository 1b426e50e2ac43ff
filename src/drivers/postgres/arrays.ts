import type { LeaseRef } from '../../core/driver.ts'

/**
 * PostgreSQL array literals as text, so that every client sends and receives lists in the same way. What is undefined
 * is sent as the empty text or as 0: `statements.sql` says what that means.
 */

export const textArray = (values: readonly (string | undefined)[]): string =>
  `{${values.map((value = '') => quoted(value)).join(',')}}`

export const numberArray = (values: readonly (number | undefined)[]): string =>
  `{${values.map((value = 0) => value).join(',')}}`

export const booleanArray = (values: readonly boolean[]): string =>
  `{${values.map((value) => (value ? 't' : 'f')).join(',')}}`

/** The first parameters of `renew` and `release`. */
export const leaseArrays = (leases: readonly LeaseRef[]): string[] => [
  textArray(leases.map(({ lockName }) => lockName)),
  textArray(leases.map(({ claimId }) => claimId)),
  numberArray(leases.map(({ fencingToken }) => fencingToken)),
]

const quoted = (value: string): string => `"${/["\\]/.test(value) ? value.replaceAll(/["\\]/g, '\\$&') : value}"`

export const parseNumbers = (text: string | null): number[] => elements(text).map(Number)

/** NULL becomes undefined. */
export const parseBooleans = (text: string | null): (boolean | undefined)[] =>
  elements(text).map((element) => (element === 'NULL' ? undefined : element === 't'))

const elements = (text: string | null): string[] => (text === null || text === '{}' ? [] : text.slice(1, -1).split(','))
