import type { Row } from './fuzz.ts'

/** With fewer cases, a target has seen little. */
const LEAST_CASES = 10
/** Most calls end well: the store is there, and one answer of it is odd. With a smaller share, it was not there. */
const OK_SHARE = 0.25

/** Reasons why a run without findings proves nothing: it did too little. */
export const tooLittle = (rows: readonly Row[]): string[] =>
  rows.flatMap(({ target, cases, calls, outcomes }) => {
    const ok = outcomes.get('ok') ?? 0
    return [
      ...(cases < LEAST_CASES ? [`too few cases of ${target}: ${cases}, but at least ${LEAST_CASES} are needed`] : []),
      ...(ok < calls * OK_SHARE || calls === 0 ? [`too few calls of ${target} ended well: ${ok} of ${calls}`] : []),
    ]
  })
