import { UsageError } from './exit-codes.ts'

/** The two largest units: `12s`, `3m 12s`, `2h 5m`, `3d 4h`. A clock that is behind the store's gives `0s`. */
export function durationText(ms: number): string {
  let seconds = Math.max(0, Math.floor(ms / 1_000))
  const parts: string[] = []
  for (const [unit, size] of UNITS) {
    const count = Math.floor(seconds / size)
    seconds -= count * size
    if (count > 0) parts.push(`${count}${unit}`)
    else if (parts.length > 0) break
    if (parts.length === 2) break
  }
  return parts.join(' ') || '0s'
}

/** Reads `90`, `90s`, `5m`, `2h` and `1d`. Without a unit they are seconds. */
export function durationMsFrom(option: string, text: string): number {
  const [, number, unit = 's'] = /^(\d+(?:\.\d+)?)([dhms])?$/.exec(text.trim()) ?? []
  const size = UNITS.find(([name]) => name === unit)?.[1]
  if (number === undefined || size === undefined) {
    throw new UsageError(`${option} must be a time such as 90, 90s, 5m, 2h or 1d, but is "${text}"`)
  }
  return Number(number) * size * 1_000
}

const UNITS = [
  ['d', 86_400],
  ['h', 3_600],
  ['m', 60],
  ['s', 1],
] as const

export const isoTime = (ms: number): string => new Date(ms).toISOString()
