// @ts-check
import { readFileSync } from 'node:fs'
import { bestPeerOf, figureOf, floorOf, markdown, ratioOf, shown } from './table.mjs'

/** @import { Row, Table, Target } from '../types.d.ts' */

/** @type {readonly Target[]} */
export const targets = JSON.parse(readFileSync(new URL('../targets.json', import.meta.url), 'utf8'))

/**
 * The figure of each target in each regime that was measured, and whether it is met in all of them.
 *
 * @param {readonly Table[]} tables
 * @param {{ all: boolean }} options whether to list targets that were not measured
 * @returns {string} as Markdown
 */
export function printTargets(tables, { all }) {
  const body = targets.flatMap((target) => {
    const found = tables.filter(({ id }) => id === target.table).flatMap((table) => measured(table, target))
    if (found.length === 0 && !all) return []
    const limit =
      target.atMost === undefined ? `≥ ${shownFor(target, target.atLeast)}` : `≤ ${shownFor(target, target.atMost)}`
    const figures = found.map(({ ours }) => shownFor(target, ours)).join(' / ')
    const peers = found.map(({ peer }) => shownFor(target, peer)).join(' / ')
    const cpu = found.map(({ cpu }) => shown(cpu, 2)).join(' / ')
    return [[target.title, limit, target.before, figures || '–', peers || '–', cpu || '–', verdict(found)]]
  })
  if (body.length === 0) return ''
  return `${markdown(['scenario', 'target', 'before', 'now', 'best peer now', 'all CPU ÷ floor', ''], body)}\n`
}

/** @param {readonly { met: boolean }[]} found in each regime */
function verdict(found) {
  if (found.length === 0) return 'not measured'
  if (found.every(({ met }) => met)) return 'met'
  return found.some(({ met }) => met) ? 'met in part' : 'not met'
}

/**
 * @param {Table} table
 * @param {Target} target
 */
function measured(table, target) {
  const row = table.rows.find(({ kind }) => kind === 'holdfast')
  const floor = floorOf(table)
  const best = bestPeerOf(table)
  if (row === undefined) return []
  /** @param {Row | undefined} of */
  const figure = (of) => {
    if (of === undefined) return Number.NaN
    if (!target.toFloor) return figureOf(of, target.column)
    return floor === undefined ? Number.NaN : ratioOf(of, floor, target.column).median
  }
  const ours = figure(row)
  const met =
    ours <= (target.atMost ?? Number.POSITIVE_INFINITY) && ours >= (target.atLeast ?? Number.NEGATIVE_INFINITY)
  const cpu = target.toFloor && floor !== undefined ? ratioOf(row, floor, 'cost').median : Number.NaN
  return [{ ours, peer: figure(best), cpu, met }]
}

/**
 * @param {Target} target
 * @param {number} [value]
 */
const shownFor = ({ unit, toFloor }, value = Number.NaN) =>
  unit === undefined || toFloor || Number.isNaN(value)
    ? shown(value, 2)
    : `${shown(value, value < 100 ? 1 : 0)} ${unit}`.trim()
