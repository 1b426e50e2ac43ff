import { InvalidArgumentError } from '../../core/errors.ts'

/** In whole milliseconds. Throws `InvalidArgumentError` unless it is a number of seconds from 0.001 to `max`. */
export function msFromSeconds(argument: string, seconds: unknown, max = 3_600): number {
  if (typeof seconds === 'number' && seconds >= 0.001 && seconds <= max) return Math.ceil(seconds * 1_000)
  throw new InvalidArgumentError(argument, seconds, `a number of seconds from 0.001 to ${max}`)
}
