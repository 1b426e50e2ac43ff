import { describe, expect, test } from 'vitest'
import { longLines, MAX_COLUMNS, wordsToAvoid } from '../scripts/prose.mjs'

const long = 'word '.repeat(MAX_COLUMNS / 5).concat('end')
const linesOf = (file: string, ...lines: string[]) =>
  longLines([{ file, text: lines.join('\n') }]).map(({ line }) => line)

describe('lines above 120 columns', () => {
  test('are found in code and comments', () => {
    expect(linesOf('src/index.ts', 'short', `// ${long}`, 'x'.repeat(120), 'x'.repeat(121))).toEqual([2, 4])
  })

  test('are counted in characters, not in bytes', () => {
    expect(linesOf('src/index.ts', '…'.repeat(120))).toEqual([])
  })

  test('are found in the text of a page, but not in its tables, code blocks and link targets', () => {
    const link = `[a page](https://example.com/${'x'.repeat(120)})`
    expect(linesOf('docs/page.md', long, `| ${long} |`, '```ts', long, '```', link, long)).toEqual([1, 7])
  })
})

describe('words to avoid', () => {
  const placesIn = (text: string) => wordsToAvoid([{ file: 'src/index.ts', text }]).map(({ line }) => line)

  test('are found in any case, and each time', () => {
    expect(placesIn('Whoever comes first\nis told, and nobody else')).toEqual([1, 2, 2])
  })

  test('are found where a line ends between them', () => {
    expect(placesIn('/**\n * one at the\n * most\n */\n-- at\n-- the most')).toEqual([2, 5])
  })

  test('are whole words', () => {
    expect(placesIn('a standard outstanding understands')).toEqual([])
  })
})
