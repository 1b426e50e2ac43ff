import { framed } from '../../../test/harness/wire.ts'
import type { Draw } from '../../draw.ts'
import { ODD_NUMBERS, oddBytes, oddText } from '../odd.ts'

/**
 * A reply that the server did not send, but could: other values, columns, rows, messages or errors. With `keepsShape`,
 * every row has as many columns as were described, and no message comes twice: the package postgres ends the process
 * otherwise, and no driver can prevent that.
 */
export function mutatePostgres(draw: Draw, reply: Buffer, keepsShape: boolean): { bytes: Buffer; how: string } {
  const parts = partsOf(reply)
  // A single byte: the answer to a request for TLS.
  if (parts.length === 0) return { bytes: Buffer.from(draw.one(['S', 'N', 'E', 'x'])), how: 'another TLS answer' }
  const rows = parts.filter(({ type }) => type === 'D')
  const how =
    rows.length > 0 && draw.chance(0.65)
      ? mutateRow(draw, draw.one(rows), keepsShape)
      : mutateParts(draw, parts, keepsShape)
  return { bytes: Buffer.concat(parts.map(({ type, body }) => framed(type, body))), how }
}

interface Part {
  type: string
  body: Buffer
}

function partsOf(bytes: Buffer): Part[] {
  const parts: Part[] = []
  for (let at = 0; at + 5 <= bytes.length; ) {
    const end = at + 1 + bytes.readInt32BE(at + 1)
    if (end > bytes.length) break
    parts.push({ type: String.fromCharCode(bytes[at] ?? 0), body: Buffer.from(bytes.subarray(at + 5, end)) })
    at = end
  }
  return parts
}

/** Where the last complete part ends before `length`. */
export function endOfPart(bytes: Buffer, length: number): number {
  let at = 0
  for (const { body } of partsOf(bytes)) {
    if (at + 5 + body.length > length) break
    at += 5 + body.length
  }
  return at
}

function mutateRow(draw: Draw, row: Part, keepsShape: boolean): string {
  const columns = columnsOf(row.body)
  const at = draw.whole(0, Math.max(0, columns.length - 1))
  const before = columns[at]
  const write = (how: string): string => {
    row.body = writeColumns(columns)
    return how
  }
  switch (draw.whole(keepsShape ? 3 : 0, 10)) {
    case 0:
      columns.splice(at, 1)
      return write(`column ${at} missing`)
    case 1:
      columns.splice(at, 0, before ?? null)
      return write(`column ${at} twice`)
    case 2:
      columns.push(Buffer.from('1'))
      return write('a column more')
    case 3:
      columns[at] = null
      return write(`column ${at} NULL`)
    case 4:
      columns.reverse()
      return write('columns reversed')
    case 5:
      columns[at] = Buffer.from(draw.one(ODD_NUMBERS))
      return write(`column ${at} ${String(columns[at])}`)
    case 6:
      columns[at] = oddBytes(draw)
      return write(`column ${at} of random bytes`)
    default: {
      const text = oddText(draw, before?.toString() ?? '')
      columns[at] = Buffer.from(text)
      return write(`column ${at} ${JSON.stringify(text.slice(0, 80))}`)
    }
  }
}

function columnsOf(body: Buffer): (Buffer | null)[] {
  let at = 2
  return Array.from({ length: body.readInt16BE(0) }, () => {
    const length = body.readInt32BE(at)
    at += 4
    if (length < 0) return null
    at += length
    return body.subarray(at - length, at)
  })
}

function writeColumns(columns: readonly (Buffer | null)[]): Buffer {
  const count = Buffer.alloc(2)
  count.writeInt16BE(columns.length)
  const lengths = columns.flatMap((column) => {
    const length = Buffer.alloc(4)
    length.writeInt32BE(column?.length ?? -1)
    return column === null ? [length] : [length, column]
  })
  return Buffer.concat([count, ...lengths])
}

function mutateParts(draw: Draw, parts: Part[], keepsShape: boolean): string {
  const at = draw.whole(0, parts.length - 1)
  const part = parts[at] as Part
  switch (draw.whole(keepsShape ? 3 : 0, 6)) {
    case 0:
      // Without its end, the client waits for it.
      parts.splice(at, 1)
      return `message ${part.type} missing`
    case 1:
      parts.splice(at, 0, { ...part })
      return `message ${part.type} twice`
    case 2:
      parts.splice(parts.length - 1, 0, { type: 'D', body: writeColumns([Buffer.from(draw.one(ODD_NUMBERS)), null]) })
      return 'another row'
    case 3:
      parts.splice(0, parts.length, { type: 'E', body: errorBody(draw) }, { type: 'Z', body: Buffer.from('I') })
      return 'an error'
    case 4: {
      const row = parts.find(({ type }) => type === 'D')
      if (row === undefined) return 'nothing changed'
      parts.splice(parts.indexOf(row), 1)
      return 'row missing'
    }
    case 5:
      parts.splice(at, 0, { type: 'E', body: errorBody(draw) })
      return `an error before ${part.type}`
    default:
      parts.splice(at, 0, { type: 'N', body: errorBody(draw) })
      return `a notice before ${part.type}`
  }
}

function errorBody(draw: Draw): Buffer {
  const code = draw.one(STATES)
  const text = draw.one(['', 'odd', 'x'.repeat(20_000), '\u{1f512}'])
  const fields = [`S${draw.one(['ERROR', 'FATAL', 'PANIC', ''])}`, `C${code}`, `M${text}`]
  return Buffer.from(`${draw.chance(0.1) ? '' : `${fields.join('\0')}\0`}\0`)
}

const STATES: readonly string[] = [
  ...['00000', '57P01', '57P05', '26000', '42P05', '25P02', '25006', 'XX000', '42501', '0A000', '42P01', '42883'],
  ...['40001', '40P01', '55P03', '53300', '53200', '22P02', '23505', '3D000', '28P01', '08P01', '', 'zzzzz'],
]
