import { nowMs } from '../history.ts'
import { type Client, LONGEST_TTL_SECONDS } from './client.ts'
import type { Ground } from './grounds.ts'
import { type Play, pause } from './play.ts'
import { CALL_MS, SLACK_MS, seconds, WAITER_MS } from './settings.ts'
import type { Granted, Watch } from './watch.ts'

/** Asks the store for a lease that a client has just been granted. As long as the client relies on it, it is there. */
export async function confirm({ client, name, lease }: Granted, watch: Watch, fresh: Client): Promise<void> {
  const shown = await fresh.patient.inspect(name).catch(() => undefined)
  const tokens = shown?.leases.map(({ fencingToken }) => fencingToken)
  if (tokens === undefined || tokens.includes(lease.fencingToken) || !watch.isRelied(lease)) return
  watch.violation(`${client} holds ${name} with token ${lease.fencingToken}, but the store shows ${tokens}`)
}

export interface Aftermath {
  readonly play: Play
  readonly fresh: Client
  readonly ground: Ground
  /** Of all leases of the scene. */
  readonly longestTtlMs: number
  granted(): void
}

/**
 * After the scene, a client without faults is granted every lock, with a higher token. It keeps it while the messages
 * that were held back arrive. Then nothing is left in the store.
 */
export async function checkAfter({ play, fresh, ground, longestTtlMs, granted }: Aftermath): Promise<void> {
  const { watch, names } = play
  await Promise.all(
    names.map(async (name) => {
      const before = Math.max(0, ...watch.tokensOf(name))
      const waitMs = longestTtlMs + WAITER_MS + CALL_MS * 2 + SLACK_MS
      const options = { timeoutSeconds: FRESH_TTL_SECONDS, blockingTimeoutSeconds: seconds(waitMs) }
      const askedAt = nowMs()
      const result = await play.settles('z acquire', waitMs + CALL_MS, () => fresh.lock.acquire(name, options))
      if (!result?.acquired) return watch.late(`a fresh client is not granted ${name} within ${waitMs} ms`)
      const { lock: lease } = result
      watch.granted({ client: 'z', name, lease, askedAt })
      granted()
      if (lease.fencingToken <= before) watch.violation(`falling token: ${lease.fencingToken} after ${before}`)
      await pause(AFTERMATH_MS)
      const shown = await play.settles('z inspect', SLACK_MS, () => fresh.lock.inspect(name))
      const tokens = shown?.leases.map(({ fencingToken }) => fencingToken) ?? []
      if (shown !== undefined && (tokens.length !== 1 || tokens[0] !== lease.fencingToken)) {
        watch.violation(`${name} is held by z with token ${lease.fencingToken}, but the store shows ${tokens}`)
      }
      watch.ended(lease)
      const released = await play.settles('z release', CALL_MS * 2, () => lease.release())
      if (released === false) watch.violation(`the fresh client lost ${name}: ${lease.signal.reason}`)
      await checkEmpty({ play, fresh, ground, longestTtlMs }, name)
    }),
  )
}

/** Long enough for a busy machine: this client must not lose its lease. */
const FRESH_TTL_SECONDS = LONGEST_TTL_SECONDS
/** How long the fresh client holds the lock while late messages arrive. */
const AFTERMATH_MS = 120

async function checkEmpty(
  { play, fresh, ground, longestTtlMs }: Omit<Aftermath, 'granted'>,
  name: string,
): Promise<void> {
  const deadline = nowMs() + Math.max(longestTtlMs, WAITER_MS) + SLACK_MS
  for (;;) {
    const shown = await play.settles('z inspect', CALL_MS, () => fresh.lock.inspect(name))
    const isShown = shown?.leases.length !== 0 || shown.waiters.length !== 0
    const left = isShown ? [JSON.stringify(shown)] : await ground.left(name)
    if (left.length === 0) return
    if (nowMs() > deadline) return play.watch.late(`left in the store: ${left}`)
    await pause(100)
  }
}
