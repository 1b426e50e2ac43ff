/** Colours for a light and for a dark page, with enough contrast to it and to each other. */
const CLIENTS = [
  ['#0969da', '#58a6ff'],
  ['#1a7f37', '#3fb950'],
  ['#9a6700', '#d29922'],
  ['#8250df', '#bc8cff'],
  ['#1b7c83', '#39c5cf'],
  ['#bf3989', '#f778ba'],
  ['#57606a', '#8b949e'],
  ['#953800', '#f0883e'],
] as const

const PAGE = {
  page: ['#ffffff', '#0d1117'],
  text: ['#1f2328', '#e6edf3'],
  dim: ['#57606a', '#9198a1'],
  row: ['#f2f4f7', '#171c24'],
  tick: ['#d0d7de', '#30363d'],
  hit: ['#e8a33d', '#e8a33d'],
  fault: ['#f5d9a8', '#5a4314'],
  kind: ['#5c3d00', '#f0d9a8'],
  token: ['#ffffff', '#0d1117'],
  red: ['#d1242f', '#ff5a52'],
} as const

/** The class of a client's colour. */
export const colourOf = (client: number): string => `c${client % CLIENTS.length}`

export interface Rect {
  x: number
  y: number
  width: number
  height: number
  className: string
  /** Shown when the pointer is over it. */
  is?: string
}

export function rect({ x, y, width, height, className, is }: Rect): string {
  const place = `x="${x.toFixed(1)}" y="${y.toFixed(1)}" width="${width.toFixed(1)}" height="${height}"`
  const round = height > 8 && width > 4 ? ' rx="2"' : ''
  const open = `<rect class="${className}" ${place}${round}`
  return is === undefined ? `${open}/>` : `${open}><title>${escaped(is)}</title></rect>`
}

export function text({ x, y, className, is }: { x: number; y: number; className: string; is: string }): string {
  return `<text class="${className}" x="${x.toFixed(1)}" y="${y.toFixed(1)}">${escaped(is)}</text>`
}

/** A line in the colour of a client. */
export function line({
  points,
  client,
}: {
  points: readonly (readonly [x: number, y: number])[]
  client: number
}): string {
  const path = points.map(([x, y], at) => `${at === 0 ? 'M' : 'L'}${x.toFixed(1)} ${y.toFixed(1)}`).join('')
  return `<path class="line l${client % CLIENTS.length}" d="${path}"/>`
}

export interface LegendOptions {
  x: number
  y: number
  clients: number
  hasViolation: boolean
}

export function legend({ x, y, clients, hasViolation }: LegendOptions): string {
  const entries: { label: string; swatch: (at: number) => string }[] = [
    ...Array.from({ length: clients }, (_, client) => ({
      label: `client ${client}`,
      swatch: (at: number) => rect({ x: at, y: y - 10, width: 14, height: 12, className: colourOf(client) }),
    })),
    { label: 'lost', swatch: (at) => `<path class="lost" d="M${at + 10} ${y - 12}v16"/>` },
    { label: 'process killed', swatch: (at) => `<path class="killed" d="M${at + 10} ${y - 12}v16"/>` },
    {
      label: 'under a fault',
      swatch: (at) =>
        rect({ x: at, y: y - 10, width: 14, height: 12, className: 'row' }) +
        rect({ x: at, y: y - 10, width: 14, height: 12, className: 'hit' }),
    },
    ...(hasViolation
      ? [
          {
            label: 'violation',
            swatch: (at: number) => rect({ x: at, y: y - 10, width: 14, height: 12, className: 'violation' }),
          },
        ]
      : []),
  ]
  let at = x
  const parts = entries.map(({ label, swatch }) => {
    const part = swatch(at) + text({ x: at + 20, y, className: 'legend', is: label })
    at += 36 + label.length * 7
    return part
  })
  return parts.join('\n')
}

/** Without scripts and fonts from elsewhere. It follows the light or dark page of its reader. */
export function page(options: {
  width: number
  height: number
  title: string
  clients: number
  parts: string[]
}): string {
  const { width, height, title, parts } = options
  const size = `viewBox="0 0 ${width} ${height}" width="${width}" height="${height}"`
  return `<svg xmlns="http://www.w3.org/2000/svg" ${size} role="img">
<title>${escaped(title)}</title>
<style>
text { font: 12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif }
.title { font-size: 17px; font-weight: 600 }
.bold { font-weight: 600 }
.label { text-anchor: end }
.second, .token { text-anchor: middle; font-size: 11px }
.token { font-size: 10.5px; pointer-events: none }
.kind { font-size: 10.5px; pointer-events: none }
.hit { fill-opacity: 0.22 }
.tick { fill: none; stroke-opacity: 0.7 }
.lost, .killed { fill: none; stroke-width: 2 }
.killed { stroke-dasharray: 2 2 }
.wrong { stroke-width: 2 }
.line { fill: none; stroke-width: 1.6; stroke-linejoin: round }
.violation { fill-opacity: 0.35; stroke-width: 1.5 }
${css(0)}
@media (prefers-color-scheme: dark) {
${css(1)}
}
</style>
<rect class="page" width="${width}" height="${height}" rx="8"/>
${parts.join('\n')}
</svg>
`
}

function css(theme: 0 | 1): string {
  const { page: back, text: ink, dim, row, tick, hit, fault, kind, token, red } = PAGE
  return [
    `.page { fill: ${back[theme]} }`,
    `text { fill: ${ink[theme]} }`,
    `.dim, .second { fill: ${dim[theme]} }`,
    `.row { fill: ${row[theme]} }`,
    `.tick { stroke: ${tick[theme]} }`,
    `.hit { fill: ${hit[theme]} }`,
    `.fault { fill: ${fault[theme]} }`,
    `.kind { fill: ${kind[theme]} }`,
    `.token { fill: ${token[theme]} }`,
    `.lost, .killed { stroke: ${ink[theme]} }`,
    `.violation { fill: ${red[theme]}; stroke: ${red[theme]} }`,
    `.wrong { stroke: ${red[theme]} }`,
    ...CLIENTS.map((pair, client) => `.c${client} { fill: ${pair[theme]} }`),
    ...CLIENTS.map((pair, client) => `.l${client} { stroke: ${pair[theme]} }`),
  ].join('\n')
}

const escaped = (is: string): string =>
  is.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;').replaceAll('"', '&quot;')
