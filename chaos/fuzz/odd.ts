import fc from 'fast-check'
import type { Draw } from '../draw.ts'

/** A value of fast-check, decided by the draw of the case. */
export const drawn = <T>(draw: Draw, values: fc.Arbitrary<T>): T =>
  fc.sample(values, { seed: draw.whole(0, 0x7fff_ffff), numRuns: 1 })[0] as T

/** What a store may send in place of a number. */
export const ODD_NUMBERS: readonly string[] = [
  ...['0', '-0', '-1', '1', '2', '1.5', '1e3', '1e21', '1e400', '-1e400', 'NaN', 'Infinity', '-Infinity', 'nan', 'inf'],
  ...['9007199254740991', '9007199254740992', '9007199254740993', '-9007199254740993'],
  ...['9223372036854775807', '9223372036854775808', '-9223372036854775808', '18446744073709551616'],
  ...['99999999999999999999999999', '8640000000000000', '8640000000000001', '0x10', ' 7', '7 ', '٣', ''],
]

export const ODD_TEXTS: readonly string[] = [
  ...[
    '',
    ' ',
    'null',
    'undefined',
    'true',
    'NULL',
    '{}',
    '[]',
    '{',
    '[',
    '[""]',
    '["x"]',
    '["x",1]',
    '["x",1,2,3,"h"]',
  ],
  ...['["x",-1,-2,-3,"h"]', '["x",1e400,1e400,1e400,"h",[]]', '["x",1,2,3,4,5,6,7,8,9]', '[null,null,null,null,null]'],
  ...[
    '{"lost":7}',
    '{"__proto__":{"polluted":1}}',
    '{a,b}',
    '{"a","b"}',
    '{NULL}',
    '{"\\',
    'holdfast:shared',
    'g',
    'y',
  ],
  ...['\0', '\ud800', '\u{1f512}', '\u202e', '\x1b[31m', 'a\r\nb', '%s%n', "'; DROP TABLE x; --", '\u0130'],
]

/** Changes a part of a text as a broken store could, or replaces all of it. */
export function oddText(draw: Draw, text: string): string {
  switch (draw.whole(0, 8)) {
    case 0:
      return text.slice(0, draw.whole(0, text.length))
    case 1:
      return draw.one(ODD_TEXTS)
    case 2:
      return draw.one(ODD_NUMBERS)
    case 3:
      return text + text
    case 4:
      return drawn(draw, fc.string({ unit: 'binary', maxLength: 40 }))
    case 5:
      return drawn(draw, fc.json({ maxDepth: 4 }))
    case 6:
      return draw.one(['x', '[', '9']).repeat(draw.one([300, 20_000]))
    default:
      return withOddPart(draw, text)
  }
}

/** Replaces one number, quoted text or character. */
function withOddPart(draw: Draw, text: string): string {
  const parts = [...text.matchAll(/-?\d+(?:\.\d+)?|"(?:[^"\\]|\\.)*"|null|true|false/g)]
  if (parts.length === 0) {
    const at = draw.whole(0, text.length)
    return `${text.slice(0, at)}${draw.one(['"', '\\', ',', '{', '\0', '9'])}${text.slice(at + draw.whole(0, 1))}`
  }
  const part = draw.one(parts)
  const odd = draw.one([...ODD_NUMBERS, 'null', 'true', '""', '"x"', '[]', '{}', '[[1]]', '{"a":[1]}'])
  return text.slice(0, part.index) + odd + text.slice(part.index + part[0].length)
}

/** Bytes that are no UTF-8, among others. */
export const oddBytes = (draw: Draw, most = 200): Buffer =>
  Buffer.from(Array.from({ length: draw.whole(0, most) }, () => draw.whole(0, 255)))
