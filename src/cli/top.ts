import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import { chooseUrl, connect } from '../connect.ts'
import type { Driver } from '../core/driver.ts'
import { HoldfastError, isOutage } from '../core/errors.ts'
import { messageOf } from '../core/foreign-errors.ts'
import { redactedUrl, withoutSecrets } from '../core/secrets.ts'
import { isBookkeeping } from '../primitives/lock/forced-release-record.ts'
import { inspectStore } from '../primitives/on-driver.ts'
import { durationMsFrom } from './duration.ts'
import { signalCode, UsageError } from './exit-codes.ts'
import { openScreen } from './screen.ts'
import { examine } from './show.ts'
import { argumentsOf, closeWithin, FLAG, onePrefix, TEXT } from './store.ts'
import { paintFor, say } from './text.ts'
import { type FrameOptions, frameOf, pageOf } from './top-frame.ts'
import { NO_HISTORY, observed, rateOf, rowsFrom } from './top-locks.ts'
import { firstState, press, TOP_SORTINGS, type TopSorting, withDetail, withOutage, withRows } from './top-state.ts'

/** A live view of the locks of a store. */
export async function main(args: readonly string[]): Promise<number> {
  const options = parse(args)
  const { stdin, stdout } = process
  if (!stdin.isTTY || !stdout.isTTY || process.env['TERM'] === 'dumb') {
    throw new UsageError('top needs a terminal. Where there is none, use holdfast ls')
  }
  const printWarnings = collectWarnings()
  try {
    return await show(options)
  } finally {
    printWarnings()
  }
}

async function show({ url, prefix, sort, everyMs, all }: Options): Promise<number> {
  const ended = new AbortController()
  let state = firstState({ place: `${redactedUrl(url)}`, prefix, sort })
  let history = NO_HISTORY
  let driver: Driver | undefined
  /** Ends the pause before the next look. */
  let wake = new AbortController()

  const paint = paintFor(process.stdout)
  const options = (): FrameOptions => ({ columns: screen.columns, rows: screen.rows, nowMs: Date.now(), paint })
  const draw = (): void => screen.draw(frameOf(state, options()))
  const screen = openScreen({
    pressed(key) {
      const next = press(state, key, pageOf(state, options()))
      if (next === undefined) return ended.abort(key === 'q' ? 0 : signalCode('SIGINT'))
      if (next.detail?.lockName !== state.detail?.lockName) wake.abort()
      state = next
      draw()
    },
    changed: () => draw(),
    ended: (signal) => ended.abort(signalCode(signal)),
  })

  /** Looks at the store once: at all locks, or at the one that is inspected. */
  async function refresh(): Promise<void> {
    driver ??= await connect(url)
    state = { ...state, place: driver.place ?? state.place }
    const { detail, view } = state
    if (view === 'detail' && detail !== undefined) {
      const known = detail.shown === undefined ? {} : { forcedReleases: detail.shown.forcedReleases }
      const shown = await examine(driver, detail.lockName, { ...known, bounds: BOUNDS })
      state = withDetail(state, shown)
      return
    }
    const { leases, waiters, complete } = await inspectStore(driver, { prefix, pageSize: PAGE_SIZE }, BOUNDS)
    const seen = { leases: all ? leases : leases.filter((lease) => !isBookkeeping(lease)), waiters }
    history = observed(history, seen, performance.now())
    state = withRows(state, { rows: rowsFrom(seen, history), handOffs: rateOf(history), isComplete: complete })
  }

  async function watch(): Promise<void> {
    while (!ended.signal.aborted) {
      const began = { atMs: Date.now(), ms: performance.now() }
      let pauseMs = everyMs
      wake = new AbortController()
      try {
        await refresh()
        pauseMs = Math.max(everyMs, Math.min(REST * (performance.now() - began.ms), MAX_REST_MS))
      } catch (error) {
        // A wrong password does not become right. But a store that has answered may do so again.
        const mayPass = state.rows === undefined ? isOutage(error) : error instanceof HoldfastError
        if (!mayPass) throw error
        state = withOutage(state, withoutSecrets(messageOf(error)), began.atMs)
      }
      draw()
      const signal = AbortSignal.any([wake.signal, ended.signal])
      await sleep(pauseMs, undefined, { signal }).catch(() => undefined)
    }
  }

  draw()
  // The times on the screen go on while the store is slow or does not answer.
  const clock = setInterval(draw, CLOCK_MS)
  try {
    await Promise.race([watch(), once(ended.signal, 'abort')])
    // Only the screen ends it, with an exit code.
    return ended.signal.reason as number
  } finally {
    clearInterval(clock)
    screen.close()
    await closeWithin(CLOSE_MS, async () => driver?.close())
  }
}

/** Keeps warnings, such as those of a driver, until the terminal is given back. */
function collectWarnings(): () => void {
  const messages = new Set<string>()
  process.removeAllListeners('warning').on('warning', ({ message }) => {
    if (messages.size < MAX_WARNINGS) messages.add(message)
  })
  return () => messages.forEach(say)
}

const MAX_WARNINGS = 20

/** How much one look reads at most. A page of a large Redis database may have few locks, or none. */
const PAGE_SIZE = 500
const BOUNDS = { pages: 80, records: 20_000 }
/** It rests this many times as long as a look took, so that it takes a fifth of one connection at most. */
const REST = 4
/** A look during which the program was suspended seems to have taken long. */
const MAX_REST_MS = 30_000
const MIN_EVERY_MS = 100
const CLOCK_MS = 1_000
/** How long it waits for a store that does not answer when it quits. */
const CLOSE_MS = 500

type Options = ReturnType<typeof parse>

function parse(args: readonly string[]) {
  const { values, positionals } = argumentsOf(args, { sort: TEXT, every: TEXT, all: FLAG })
  const { sort = 'waiters', every = '1s', all = false } = values
  const everyMs = durationMsFrom('--every', every)
  if (everyMs < MIN_EVERY_MS)
    throw new UsageError(`--every must be at least ${MIN_EVERY_MS / 1_000}s, but is "${every}"`)
  return { url: chooseUrl(values.url), prefix: onePrefix('top', positionals), sort: sortingFrom(sort), everyMs, all }
}

function sortingFrom(text: string): TopSorting {
  const sorting = TOP_SORTINGS.find((each) => each === text)
  if (sorting !== undefined) return sorting
  throw new UsageError(`--sort must be ${TOP_SORTINGS.join(', ')}, but is "${text}"`)
}
