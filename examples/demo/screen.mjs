// @ts-check
// The output: a line for each event, with a lane for each process.
import { styleText } from 'node:util'
import { now } from './cast.mjs'

/** @typedef {import('./tally.mjs').DemoEvent} DemoEvent */
/** @typedef {Parameters<typeof styleText>[0]} Style */

const out = process.stdout
const { NO_COLOR, FORCE_COLOR } = process.env
const coloured = NO_COLOR
  ? false
  : FORCE_COLOR
    ? FORCE_COLOR !== '0'
    : out.isTTY === true && process.env['TERM'] !== 'dumb'

/**
 * @param {Style} style
 * @param {string} text
 */
export const paint = (style, text) => (coloured ? styleText(style, text, { validateStream: false }) : text)

const DELAY_MS = 60
/**
 * A process that releases the lock and waits again within this time is shown as waiting when the next one is granted.
 */
const SETTLE_MS = 20

/** The state of a process after its last event. */
const marks = /** @type {const} */ ({
  holds: { sign: '█', style: 'green', name: 'holds' },
  asks: { sign: '·', style: 'yellow', name: 'waits' },
  'is paused': { sign: '‖', style: 'magenta', name: 'is paused' },
  'is killed': { sign: '✕', style: 'red', name: 'is killed' },
})

/** Events that clear the lane of a process. Other events leave it as it is. */
const clears = ['lets go', 'wakes']

/** @param {{ cast: readonly string[], events: readonly DemoEvent[], startedAt: number }} parts */
export function createScreen({ cast, events, startedAt }) {
  let barShown = false
  /**
   * Lines are delayed, so that they can be sorted by time: events of two processes may arrive out of order.
   *
   * @type {{ at: number, text: string }[]}
   */
  let queue = []

  /** @param {string} [text] */
  function print(text = '') {
    flush(Number.POSITIVE_INFINITY)
    write(text)
  }

  /** @param {string} text */
  function write(text) {
    clearBar()
    out.write(`${text}\n`)
  }

  /** @param {number} until */
  function flush(until) {
    queue.sort((a, b) => a.at - b.at)
    const due = queue.filter(({ at }) => at <= until)
    queue = queue.slice(due.length)
    for (const { at, text } of due) {
      const time = ((at - startedAt) / 1_000).toFixed(2).padStart(6)
      write(`${paint('dim', `${time} s`)}  ${lanes(at + SETTLE_MS)}${text}`)
    }
  }

  /** Only on a terminal, where the line can be cleared. */
  function clearBar() {
    if (barShown) out.write('\r\x1b[2K')
    barShown = false
  }

  /** @param {number} until */
  function lanes(until) {
    /** @type {Map<string, string>} */
    const last = new Map()
    for (const { who, what, at } of [...events].sort((a, b) => a.at - b.at)) {
      if (at > until) break
      // Events that arrive after a kill do not change the lane.
      if (last.get(who) === 'is killed') continue
      if (Object.hasOwn(marks, what)) last.set(who, what)
      else if (clears.includes(what)) last.delete(who)
    }
    return cast
      .map((who) => {
        const mark = marks[/** @type {keyof typeof marks} */ (last.get(who))]
        return ` ${mark === undefined ? ' ' : paint(mark.style, mark.sign)}  `
      })
      .join('')
  }

  return {
    print,

    legend: Object.values(marks)
      .map(({ sign, style, name }) => `${paint(style, sign)} ${name}`)
      .join('   '),

    /**
     * @param {string} title
     * @param {string} sentence
     */
    act(title, sentence) {
      print()
      print(paint('bold', title))
      print(sentence)
      print()
      print(paint('dim', `    time  ${cast.join(' ')}`))
    },

    /**
     * @param {number} at
     * @param {string} text
     */
    line(at, text) {
      queue.push({ at, text })
      setTimeout(() => flush(at), DELAY_MS)
    },

    /**
     * Shows a bar while a lease expires. Returns a function that ends it.
     *
     * @param {string} text
     * @param {number} since
     * @param {number} ttlMs
     */
    countdown(text, since, ttlMs) {
      if (out.isTTY !== true) return () => {}
      const width = 20
      const timer = setInterval(() => {
        const passedMs = now() - since
        const filled = Math.min(width, Math.round((passedMs / ttlMs) * width))
        const bar = paint('cyan', '━'.repeat(filled)) + paint('dim', '━'.repeat(width - filled))
        out.write(`\r\x1b[2K          ${text} ${bar} ${(passedMs / 1_000).toFixed(1)} s`)
        barShown = true
      }, 100)
      return () => {
        clearInterval(timer)
        clearBar()
      }
    },
  }
}

/**
 * Tokens begin at the store's clock in microseconds. Only their last digits differ.
 *
 * @param {number | undefined} token
 */
export const short = (token) => `…${String(token ?? 0).slice(-9)}`
