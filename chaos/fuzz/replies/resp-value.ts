/** A value of RESP2 or RESP3, with its type as on the wire. */
export type RespValue =
  | { readonly type: Line; text: string }
  | { readonly type: Blob; bytes: Buffer | null }
  | { readonly type: List; items: RespValue[] | null }

type Line = '+' | '-' | ':' | ',' | '(' | '#' | '_'
type Blob = '$' | '=' | '!'
type List = '*' | '~' | '>' | '%' | '|'

/** Reads one complete value, as the proxy has found it. */
export function readResp(bytes: Buffer): RespValue {
  return readAt(bytes, 0).value
}

function readAt(bytes: Buffer, at: number): { value: RespValue; end: number } {
  const lineEnd = bytes.indexOf('\r\n', at)
  const type = String.fromCharCode(bytes[at] ?? 0)
  const text = bytes.toString('latin1', at + 1, lineEnd)
  const next = lineEnd + 2
  if (type === '$' || type === '=' || type === '!') {
    const length = Number(text)
    if (length < 0) return { value: { type, bytes: null }, end: next }
    return { value: { type, bytes: bytes.subarray(next, next + length) }, end: next + length + 2 }
  }
  if (type === '*' || type === '~' || type === '>' || type === '%' || type === '|') {
    const length = Number(text) * (type === '%' || type === '|' ? 2 : 1)
    if (length < 0) return { value: { type, items: null }, end: next }
    const items: RespValue[] = []
    let end = next
    // Attributes belong to the value after them.
    while (items.length < length + (type === '|' ? 1 : 0)) {
      const item = readAt(bytes, end)
      items.push(item.value)
      end = item.end
    }
    return { value: { type, items }, end }
  }
  return { value: { type: type as Line, text }, end: next }
}

export function writeResp(value: RespValue): Buffer {
  if ('text' in value) return Buffer.from(`${value.type}${value.text}\r\n`, 'utf8')
  if ('bytes' in value) {
    if (value.bytes === null) return Buffer.from(`${value.type}-1\r\n`)
    return Buffer.concat([Buffer.from(`${value.type}${value.bytes.length}\r\n`), value.bytes, Buffer.from('\r\n')])
  }
  if (value.items === null) return Buffer.from(`${value.type}-1\r\n`)
  const count = value.type === '%' || value.type === '|' ? Math.floor(value.items.length / 2) : value.items.length
  return Buffer.concat([Buffer.from(`${value.type}${count}\r\n`), ...value.items.map(writeResp)])
}

export const bulk = (text: string): RespValue => ({ type: '$', bytes: Buffer.from(text) })
export const whole = (text: string): RespValue => ({ type: ':', text })
export const list = (...items: RespValue[]): RespValue => ({ type: '*', items })
