import { setTimeout as sleep } from 'node:timers/promises'
import type { Driver } from '../core/driver.ts'
import { withoutSecrets } from '../core/secrets.ts'
import { isBookkeeping } from '../primitives/lock/bookkeeping.ts'
import { paintFor } from './colour.ts'
import { durationMsFrom } from './duration.ts'
import { UsageError } from './exit-codes.ts'
import { jsonLines, narrowTable, type Sorting, wideTable } from './ls-output.ts'
import { argumentsOf, FLAG, look, onePrefix, outputWidth, type Seen, TEXT, urlFrom, withDriver } from './store.ts'
import { printable } from './text.ts'

export function main(args: readonly string[]): Promise<number> {
  const options = parse(args)
  return withDriver(options.url, async (driver) => {
    for (;;) {
      const output = outputOf(driver, select(await look(driver, { prefix: options.prefix }), options), options)
      if (!options.watch) {
        process.stdout.write(output)
        return 0
      }
      process.stdout.write(process.stdout.isTTY ? screenOf(output) : `${output}\n`)
      await sleep(WATCH_EVERY_MS)
    }
  })
}

const WATCH_EVERY_MS = 1_000

/** On a terminal each table replaces the one before it. Cleared line by line, it does not flicker. */
function screenOf(output: string): string {
  const lines = output.trimEnd().split('\n')
  // One more would scroll, and leave its beginning behind. The last row is for the cursor.
  const room = Math.max(2, (process.stdout.rows || 24) - 1)
  const fitting =
    lines.length <= room ? lines : [...lines.slice(0, room - 1), `… ${lines.length - room + 1} more lines`]
  return `\u001b[H${fitting.map((line) => `${line}\u001b[K\n`).join('')}\u001b[J`
}

interface Options {
  readonly url: string
  readonly prefix: string
  readonly form: 'narrow' | 'wide' | 'json'
  readonly sort: Sorting
  readonly watch: boolean
  readonly all: boolean
  readonly heldLongerThanMs?: number
}

function parse(args: readonly string[]): Options {
  const { values, positionals } = argumentsOf(args, {
    json: FLAG,
    wide: FLAG,
    all: FLAG,
    watch: FLAG,
    sort: TEXT,
    'held-longer-than': TEXT,
  })
  const { json, wide, watch = false, all = false, 'held-longer-than': heldLongerThan } = values
  if (json && wide) throw new UsageError('--json and --wide exclude each other')
  return {
    url: urlFrom(values.url),
    prefix: onePrefix('ls', positionals),
    form: json ? 'json' : wide ? 'wide' : 'narrow',
    sort: sortingFrom(values.sort ?? 'name'),
    watch,
    all,
    ...(heldLongerThan !== undefined && { heldLongerThanMs: durationMsFrom('--held-longer-than', heldLongerThan) }),
  }
}

function sortingFrom(text: string): Sorting {
  if (text === 'name' || text === 'age' || text === 'waiters') return text
  throw new UsageError(`--sort must be age, waiters or name, but is "${text}"`)
}

function select({ leases, waiters }: Seen, { all, heldLongerThanMs }: Options): Seen {
  const shown = all ? leases : leases.filter((lease) => !isBookkeeping(lease))
  if (heldLongerThanMs === undefined) return { leases: shown, waiters }
  const since = Date.now() - heldLongerThanMs
  // It is unknown since when another client holds its lock.
  const old = shown.filter(({ acquiredAtMs }) => acquiredAtMs > 0 && acquiredAtMs <= since)
  const names = new Set(old.map(({ lockName }) => lockName))
  return { leases: old, waiters: waiters.filter(({ lockName }) => names.has(lockName)) }
}

function outputOf({ capabilities }: Driver, seen: Seen, { prefix, form, sort }: Options): string {
  if (form === 'json') return jsonLines(seen, sort)
  const filter = prefix === '' ? '' : ` whose names begin with "${printable(withoutSecrets(prefix))}"`
  if (seen.leases.length === 0 && seen.waiters.length === 0) return `no locks are held${filter}\n`
  const isSession = capabilities.expiry === 'session'
  const [head = '', ...rows] =
    form === 'wide' ? wideTable(seen, sort, isSession) : narrowTable(seen, sort, outputWidth())
  const lines = [paintFor(process.stdout)('bold', head), ...rows]
  if (filter !== '') lines.push('', `Only locks${filter} are shown.`)
  return `${lines.join('\n')}\n`
}
