import { StoreError } from '../../core/errors.ts'
import { CALL_TIMEOUT_MS, MAX_UNANSWERED_COMMANDS } from '../../core/limits.ts'
import { afterReading, systemClock } from '../../core/time/clock.ts'

type Command = (key: string, args: readonly string[]) => Promise<unknown>

/** Clients that the driver opened itself. Their connections may be replaced. */
export const ownClients = new WeakSet<object>()

export interface UnansweredParts {
  /** As errors name the server. */
  place(key: string): string
  /** On a Cluster, the server that has the key. */
  serverOf?(key: string): string | undefined
  /** Closes the connection to this server and opens another. Absent for the client of a caller. */
  replace?: ((server: string) => void) | undefined
}

/**
 * Bounds what a server that hangs can make a client library keep: it holds every command that is not answered, and the
 * call of the driver that has timed out meanwhile. A server that has answered nothing for `STALLED_MS`, with
 * `MAX_UNANSWERED_COMMANDS` commands in flight, gets no more of them until it answers one.
 *
 * The error is an outage, so claims go on waiting and leases are renewed as soon as the server answers.
 */
export function bounded(command: Command, { place, serverOf, replace }: UnansweredParts): Command {
  const servers = new Map<string, Unanswered>()
  return (key, args) => {
    const id = serverOf?.(key) ?? ''
    let server = servers.get(id)
    if (server === undefined) {
      server = {
        count: 0,
        answers: 0,
        answersSeen: 0,
        silentSinceMs: undefined,
        isRead: false,
        replacedAtMs: undefined,
      }
      servers.set(id, server)
    }
    const nowMs = stalledAt(server)
    if (nowMs !== undefined) {
      const { replacedAtMs = Number.NEGATIVE_INFINITY } = server
      if (replace !== undefined && nowMs - replacedAtMs >= STALLED_MS) {
        server.replacedAtMs = nowMs
        replace(id)
      }
      if (server.count >= MAX_UNANSWERED_COMMANDS) {
        const message = `redis at ${place(key)} has not answered ${server.count} commands for ${STALLED_MS / 1_000} s`
        return Promise.reject(new StoreError(`${message}. Is the server or the network hanging?`))
      }
    }
    server.count += 1
    const answer = command(key, args)
    answer.then(
      () => answered(server),
      () => failed(server),
    )
    return answer
  }
}

interface Unanswered {
  count: number
  answers: number
  /** `answers` at an earlier command. */
  answersSeen: number
  /** When the first command was sent after which there was no answer, on the monotonic clock. */
  silentSinceMs: number | undefined
  /** Whether the answers that had arrived `STALLED_MS` after that were read. */
  isRead: boolean
  /** When the connection was replaced, if nothing was answered since. */
  replacedAtMs: number | undefined
}

function answered(server: Unanswered): void {
  server.count -= 1
  server.answers += 1
  server.replacedAtMs = undefined
}

function failed(server: Unanswered): void {
  server.count -= 1
  // What ends with the connection that was replaced is no answer. Otherwise each replacement would let as many commands
  // in as there were before.
  if (server.replacedAtMs === undefined) server.answers += 1
}

/**
 * The time, if the server has stalled. The clock is read only while commands are in flight and none was answered since
 * the one before. After the event loop has stalled, answers may have arrived that are not read yet, so they are read
 * before the server counts as stalled.
 */
function stalledAt(server: Unanswered): number | undefined {
  const { count, answers, answersSeen, replacedAtMs } = server
  if (answers !== answersSeen || (count === 0 && replacedAtMs === undefined)) {
    server.answersSeen = answers
    server.silentSinceMs = undefined
    server.isRead = false
    return undefined
  }
  const { monotonicMs } = systemClock.now()
  if (count === 0 && replacedAtMs !== undefined && monotonicMs - replacedAtMs >= STALLED_MS) {
    // Not asked for so long, it may be well again.
    server.replacedAtMs = undefined
    server.silentSinceMs = undefined
    server.isRead = false
  }
  server.silentSinceMs ??= monotonicMs
  if (monotonicMs - server.silentSinceMs < STALLED_MS) return undefined
  if (server.isRead) return monotonicMs
  const { silentSinceMs } = server
  afterReading(systemClock, () => {
    if (server.silentSinceMs === silentSinceMs) server.isRead = true
  })
  return undefined
}

/** The default time of a call. */
const STALLED_MS = CALL_TIMEOUT_MS
