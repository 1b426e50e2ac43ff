import { StoreError } from '../../core/errors.ts'
import { sqlState, UNSTORABLE } from './errors.ts'

/**
 * Sends a list. If the encoding of the database lacks a character of one of its texts, the server refuses all of it
 * before it does anything. Then each half is sent by itself, and so on, so that only that entry fails.
 *
 * @param units what cannot be divided: single entries, or groups of them
 */
export async function withoutUnstorable<T, A>(
  units: readonly (readonly T[])[],
  send: (entries: readonly T[]) => Promise<readonly (A | Error)[]>,
): Promise<readonly (A | Error)[]> {
  try {
    return await send(units.flat())
  } catch (error) {
    if (units.length < 2 || !isUnstorable(error)) throw error
  }
  const half = async (part: readonly (readonly T[])[]): Promise<readonly (A | Error)[]> =>
    withoutUnstorable(part, send).catch((error: Error) => part.flat().map(() => error))
  const middle = units.length >> 1
  return [...(await half(units.slice(0, middle))), ...(await half(units.slice(middle)))]
}

const isUnstorable = (error: unknown): boolean => error instanceof StoreError && sqlState(error.cause) === UNSTORABLE
