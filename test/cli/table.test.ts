import { expect, test } from 'vitest'
import { tableOf } from '../../src/cli/table.ts'
import { cutText, padText, printable, printableJson, textWidth, wrapText } from '../../src/cli/text.ts'

test.each([
  ['order', 5],
  ['é', 1],
  ['e\u0301', 1],
  ['東京', 4],
  ['한국', 4],
  ['ｆｕｌｌ', 8],
  ['😀', 2],
  ['ไทย', 3],
  ['нет…', 4],
])('%s takes the columns that a terminal gives it', (text, width) => {
  expect(textWidth(text)).toBe(width)
})

test('a text is cut, filled up and wrapped by columns, and never in the middle of a character', () => {
  expect(cutText('東京都', 5)).toBe('東京…')
  expect(cutText('東京都', 6)).toBe('東京都')
  expect(cutText('東京都', 0)).toBe('')
  expect(padText('東京都', 4)).toBe('東… ')
  expect(wrapText('😀😀😀', 4)).toEqual(['😀😀', '😀'])
  expect(wrapText('東京', 1)).toEqual(['東', '京'])
})

test('wide characters do not shift the columns behind them', () => {
  const columns = [{ title: 'LOCK', shrinks: true }, { title: 'HOLDER' }]
  const lines = tableOf(
    columns,
    [
      ['order', 'web-1'],
      ['東京'.repeat(20), 'web-2'],
    ],
    30,
  )
  expect(lines.map((line) => textWidth(line.slice(0, line.search(/HOLDER|web/))))).toEqual([24, 24, 24])
})

test('a table may have more rows than a call may have arguments', () => {
  expect(
    tableOf(
      [{ title: 'LOCK' }],
      Array.from({ length: 200_000 }, () => ['a']),
      80,
    ),
  ).toHaveLength(200_001)
})

test('characters without width are escaped, and the JSON stays the same', () => {
  const hidden = 'a\u200db\ufe0fc\u{e0041}\u{1d173}\u3164'
  expect(printable(hidden)).toBe('a\\u200db\\ufe0fc\\udb40\\udc41\\ud834\\udd73\\u3164')
  expect(JSON.parse(printableJson(hidden))).toBe(hidden)
})
