import { padText, textWidth } from './text.ts'

/** A column of a table. */
export interface Column {
  readonly title: string
  /** Its cells are cut if the table is wider than it may be. The column with the widest cells is cut first. */
  readonly shrinks?: boolean
  /** It is never narrower, so that a table that is drawn again and again does not move. */
  readonly minWidth?: number
}

/**
 * Aligned columns, with two spaces between them. The cells are printable. At most `width` columns of the terminal if
 * that can be done by cutting.
 */
export function tableOf(columns: readonly Column[], rows: readonly (readonly string[])[], width: number): string[] {
  const lines = [columns.map(({ title }) => title), ...rows]
  const widths = columns.map(({ minWidth = 0 }, at) =>
    lines.reduce((most, line) => Math.max(most, textWidth(line[at] ?? '')), minWidth),
  )
  const gaps = 2 * (columns.length - 1)
  for (let over = sum(widths) + gaps - width; over > 0; over -= 1) {
    const at = widest(columns, widths)
    if (at === undefined) break
    widths[at] = (widths[at] as number) - 1
  }
  return lines.map((line) =>
    line
      .map((cell, at) => padText(cell, widths[at] as number))
      .join('  ')
      .trimEnd(),
  )
}

/** The widest column that may still be cut. */
function widest(columns: readonly Column[], widths: readonly number[]): number | undefined {
  const cuttable = columns.flatMap(({ shrinks }, at) => (shrinks && (widths[at] as number) > NARROWEST ? [at] : []))
  return cuttable.sort((a, b) => (widths[b] as number) - (widths[a] as number))[0]
}

const sum = (numbers: readonly number[]): number => numbers.reduce((total, each) => total + each, 0)

const NARROWEST = 8
