// @ts-check
import { median } from './statistics.mjs'

/** @import { Figures, Row, Table } from '../types.d.ts' */

/** @typedef {{ median: number, least: number, most: number }} Ratio */

/**
 * The median of a column over the rounds.
 *
 * @param {Row} row
 * @param {string} column
 */
export const figureOf = (row, column) => median(row.rounds.map((round) => cellOf(round, column)))

/**
 * A row's figure divided by another row's figure of the same round.
 *
 * @param {Row} row
 * @param {Row} other
 * @param {string} column
 * @returns {Ratio}
 */
export function ratioOf(row, other, column) {
  const ratios = row.rounds.map((round, index) => cellOf(round, column) / cellOf(other.rounds[index] ?? {}, column))
  return { median: median(ratios), least: Math.min(...ratios), most: Math.max(...ratios) }
}

/** @param {Table} table */
export const floorOf = (table) => table.rows.find(({ kind }) => kind === 'floor')

/** @param {Table} table */
export function bestPeerOf({ rows, main }) {
  const sign = main.better === 'more' ? -1 : 1
  const peers = rows.filter((row) => row.kind === 'peer' && !Number.isNaN(figureOf(row, main.key)))
  return peers.toSorted((a, b) => sign * (figureOf(a, main.key) - figureOf(b, main.key)))[0]
}

/**
 * @param {Table} table
 * @returns {string} as Markdown, with the ratios of the main column
 */
export function printTable(table) {
  const { columns, main, rows } = table
  const floor = floorOf(table)
  const peer = bestPeerOf(table)
  const compared = columns.find(({ key }) => key === main.key)?.title ?? main.key
  const head = ['', ...columns.map(({ title }) => title)]
  if (floor) head.push(`${compared} ÷ floor (least to most)`)
  const hasCpu = floor !== undefined && columns.some(({ key }) => key === 'cpu')
  if (hasCpu) head.push('all CPU ÷ floor')
  if (peer) head.push('÷ best peer')
  const body = rows.map((row) => {
    const cells = columns.map(({ key, digits }) => shown(figureOf(row, key), digits))
    if (floor) cells.push(row === floor ? 'floor' : spread(ratioOf(row, floor, main.key)))
    if (hasCpu) cells.push(row === floor ? 'floor' : ratio(ratioOf(row, floor, 'cost').median))
    if (peer) cells.push(row === peer ? 'best peer' : ratio(ratioOf(row, peer, main.key).median))
    return [row.title, ...cells]
  })
  const regime = table.regime === undefined ? '' : table.regime === 'short' ? ', short slices' : ', steady state'
  return `### ${table.title}${regime}\n\n${markdown(head, body)}\n`
}

/**
 * @param {readonly string[]} head
 * @param {readonly (readonly string[])[]} body
 */
export function markdown(head, body) {
  const widths = head.map((title, index) => Math.max(3, title.length, ...body.map((row) => (row[index] ?? '').length)))
  /** @param {readonly string[]} row */
  const line = (row) =>
    `| ${row.map((cell, index) => cell[index === 0 ? 'padEnd' : 'padStart'](widths[index] ?? 0)).join(' | ')} |`
  const rule = widths.map((width, index) => (index === 0 ? '-'.repeat(width) : `${'-'.repeat(width - 1)}:`))
  return [line(head), `| ${rule.join(' | ')} |`, ...body.map(line)].join('\n')
}

/**
 * @param {number} value
 * @param {number} digits
 */
export const shown = (value, digits) =>
  value === Number.POSITIVE_INFINITY
    ? '∞'
    : Number.isFinite(value)
      ? value.toLocaleString('en', { minimumFractionDigits: digits, maximumFractionDigits: digits })
      : '–'

/** @param {number} value */
const ratio = (value) => (Number.isFinite(value) ? value.toFixed(value < 10 ? 2 : 1) : '–')

/** @param {Ratio} of */
const spread = ({ median, least, most }) => `${ratio(median)} (${ratio(least)} to ${ratio(most)})`

/**
 * @param {Figures} round
 * @param {string} column or `cost`: the CPU time of the process and of the server
 */
function cellOf(round, column) {
  if (column === 'cost') return (round['cpu'] ?? Number.NaN) + (round['serverCpu'] ?? 0)
  return round[column] ?? Number.NaN
}
