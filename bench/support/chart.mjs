// @ts-check
import { bestPeerOf, floorOf, ratioOf } from './table.mjs'

/** @import { Plot, Table } from '../types.d.ts' */

const COLORS = ['#1f6feb', '#d9822b', '#2da44e', '#8250df', '#cf222e', '#57606a', '#1b7c83', '#e85aad']
const STYLE = 'text { font: 12px system-ui, sans-serif; fill: #57606a } .title { font-size: 14px; fill: #24292f }'
const ROW = 34
const LEFT = 440
const WIDTH = 960
const HEADING = 'Speed as a multiple of the bare store'

/**
 * A bar for Holdfast and one for its best peer, as a multiple of the floor's speed, on a logarithmic scale. Further
 * right is faster in every row: ratios of times are inverted.
 *
 * @param {readonly Table[]} tables
 */
export function drawRatios(tables) {
  const rows = tables.flatMap((table) => {
    const floor = floorOf(table)
    const ours = table.rows.find(({ kind }) => kind === 'holdfast')
    if (floor === undefined || ours === undefined) return []
    const peer = bestPeerOf(table)
    /** @param {Table['rows'][number]} row */
    const speed = (row) => {
      const { median } = ratioOf(row, floor, table.main.key)
      return table.main.better === 'more' ? median : 1 / median
    }
    const regime = table.regime === 'steady' ? ', steady' : ''
    return [{ title: `${table.title}${regime}`, ours: speed(ours), peer: peer === undefined ? undefined : speed(peer) }]
  })
  const x = scale({ from: 0.05, to: 20, left: LEFT, right: WIDTH - 60 })
  const bars = rows.map(({ title, ours, peer }, index) => {
    const top = 50 + index * ROW
    return `<text x="${LEFT - 10}" y="${top + 14}" text-anchor="end">${escaped(title)}</text>
${bar(x, top, ours, COLORS[0])}${peer === undefined ? '' : bar(x, top + 13, peer, COLORS[1])}`
  })
  const height = 70 + rows.length * ROW
  const ticks = [0.1, 0.2, 0.5, 1, 2, 5, 10]
  const grid = ticks.map((tick) => {
    const color = tick === 1 ? '#24292f' : '#d0d7de'
    return `<line x1="${x(tick)}" x2="${x(tick)}" y1="42" y2="${height - 20}" stroke="${color}"/>
<text x="${x(tick)}" y="${height - 6}" text-anchor="middle">${tick} ×</text>`
  })
  const legend = `<text x="10" y="20" class="title">${HEADING}</text>
<rect x="${LEFT}" y="10" width="12" height="10" fill="${COLORS[0]}"/><text x="${LEFT + 18}" y="20">Holdfast</text>
<rect x="${LEFT + 90}" y="10" width="12" height="10" fill="${COLORS[1]}"/>
<text x="${LEFT + 108}" y="20">best peer</text>`
  return svg(HEADING, { width: WIDTH, height }, [legend, ...grid, ...bars])
}

/**
 * Both axes are logarithmic.
 *
 * @param {Plot} plot
 */
export function drawPlot({ title, x: xTitle, y: yTitle, lines }) {
  const points = lines.flatMap((line) => line.points)
  const [xs, ys] = [points.map(([x]) => x), points.map(([, y]) => y)]
  const x = scale({ from: Math.min(...xs), to: Math.max(...xs), left: 80, right: 620 })
  const [low, high] = [10 ** Math.floor(Math.log10(Math.min(...ys))), 10 ** Math.ceil(Math.log10(Math.max(...ys)))]
  const y = scale({ from: low, to: high, left: 340, right: 50 })
  const grid = [
    ...decades(low, high).map(
      (tick) =>
        `<line x1="80" x2="620" y1="${y(tick)}" y2="${y(tick)}" stroke="#d0d7de"/>
<text x="72" y="${y(tick) + 4}" text-anchor="end">${tick.toLocaleString('en')}</text>`,
    ),
    ...[...new Set(xs)].map(
      (tick) => `<text x="${x(tick)}" y="358" text-anchor="middle">${tick.toLocaleString('en')}</text>`,
    ),
  ]
  const drawn = lines.map((line, index) => {
    const color = COLORS[index % COLORS.length]
    const path = line.points.map(([px, py]) => `${x(px)},${y(py)}`).join(' ')
    return `<polyline points="${path}" fill="none" stroke="${color}" stroke-width="2"/>
<rect x="640" y="${46 + index * 20}" width="12" height="10" fill="${color}"/>
<text x="658" y="${56 + index * 20}">${escaped(line.title)}</text>`
  })
  const titles = `<text x="10" y="24" class="title">${escaped(title)}: ${escaped(yTitle)}</text>
<text x="350" y="380" text-anchor="middle">${escaped(xTitle)}</text>`
  return svg(`${title}: ${yTitle}`, { width: WIDTH, height: 390 }, [titles, ...grid, ...drawn])
}

/** @param {{ from: number, to: number, left: number, right: number }} options */
function scale({ from, to, left, right }) {
  const range = Math.log(to / from) || 1
  return (/** @type {number} */ value) => {
    const share = Math.min(1, Math.max(0, Math.log(value / from) / range))
    return Math.round((left + share * (right - left)) * 10) / 10
  }
}

/**
 * @param {(value: number) => number} x
 * @param {number} top
 * @param {number} value
 * @param {string | undefined} color
 */
function bar(x, top, value, color) {
  const [from, to] = [Math.min(x(1), x(value)), Math.max(x(1), x(value))]
  return `<rect x="${from}" y="${top}" width="${Math.max(1, to - from)}" height="11" fill="${color}"/>
<text x="${to + 4}" y="${top + 10}">${value.toFixed(2)}</text>`
}

/**
 * @param {number} low
 * @param {number} high
 */
function decades(low, high) {
  const found = []
  for (let tick = low; tick <= high * 1.001; tick *= 10) found.push(tick)
  return found
}

/**
 * @param {string} title
 * @param {{ width: number, height: number }} size
 * @param {readonly string[]} parts
 */
const svg = (title, { width, height }, parts) =>
  `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" role="img" aria-label="${escaped(title)}">
<title>${escaped(title)}</title>
<style>${STYLE}</style>
<rect width="${width}" height="${height}" fill="#ffffff"/>
${parts.join('\n')}
</svg>
`

/** @param {string} text */
const escaped = (text) => text.replaceAll('&', '&amp;').replaceAll('<', '&lt;')
