/** The two largest units: `350 ms`, `12 s`, `3 m 12 s`, `2 h 5 m`. */
export function duration(ms: number): string {
  if (ms < 1_000) return `${Math.max(0, Math.round(ms))} ms`
  let seconds = Math.floor(ms / 1_000)
  const parts: string[] = []
  for (const [unit, size] of UNITS) {
    const count = Math.floor(seconds / size)
    seconds -= count * size
    if (count > 0) parts.push(`${count} ${unit}`)
    else if (parts.length > 0) break
    if (parts.length === 2) break
  }
  return parts.join(' ')
}

const UNITS = [
  ['d', 86_400],
  ['h', 3_600],
  ['m', 60],
  ['s', 1],
] as const

/** Whole seconds, for what counts up or down every second. */
export const seconds = (ms: number): string => (ms < 1_000 ? '0 s' : duration(ms))

export const count = (value: number): string => value.toLocaleString('en')

/** `1 lock`, `2 locks`. */
export const counted = (value: number, one: string, many = `${one}s`): string =>
  `${count(value)} ${value === 1 ? one : many}`

export const clockTime = (ms: number): string => new Date(ms).toLocaleTimeString('en-GB')

/**
 * Makes visible what a browser would hide or act on. Any client of the store can write names and metadata, and a
 * direction mark could make one name look like another.
 */
export const visible = (text: string): string => text.replaceAll(INVISIBLE, escaped)

/** As in the command, except line feeds: control and format characters, line separators, and all without width. */
const INVISIBLE = /(?!\n)[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}]/gu

/** One escape for each UTF-16 unit, as in JSON. */
const escaped = (character: string): string =>
  character
    .split('')
    .map((unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`)
    .join('')
