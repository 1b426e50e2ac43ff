import { StoreError } from '../../core/errors.ts'
import { CALL_TIMEOUT_MS, MAX_UNANSWERED_COMMANDS } from '../../core/limits.ts'
import { systemClock } from '../../core/time/clock.ts'

type Command = (key: string, args: readonly string[]) => Promise<unknown>

export interface UnansweredParts {
  /** As errors name the server. */
  place(key: string): string
  /** On a Cluster, the server that has the key. */
  serverOf?(key: string): string | undefined
  /** Closes the connection and opens another. Absent for the client of a caller. */
  replace?: (() => void) | undefined
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
      server = { count: 0, answers: 0, answersSeen: 0, stalledAtMs: undefined }
      servers.set(id, server)
    }
    if (hasStalled(server)) {
      if (replace !== undefined) {
        // Not again before it has had as much time.
        server.stalledAtMs = undefined
        replace()
      }
      if (server.count >= MAX_UNANSWERED_COMMANDS) {
        const message = `redis at ${place(key)} has not answered ${server.count} commands for ${STALLED_MS / 1_000} s`
        return Promise.reject(new StoreError(`${message}. Is the server or the network hanging?`))
      }
    }
    server.count += 1
    const answered = (): void => settled(server)
    const answer = command(key, args)
    answer.then(answered, answered)
    return answer
  }
}

interface Unanswered {
  count: number
  answers: number
  /** `answers` at an earlier command. */
  answersSeen: number
  /** When the first command was sent after which there was no answer, on the monotonic clock. */
  stalledAtMs: number | undefined
}

function settled(server: Unanswered): void {
  server.count -= 1
  server.answers += 1
}

/** The clock is read only while commands are in flight and none was answered since the one before. */
function hasStalled(server: Unanswered): boolean {
  if (server.count === 0 || server.answers !== server.answersSeen) {
    server.answersSeen = server.answers
    server.stalledAtMs = undefined
    return false
  }
  const { monotonicMs } = systemClock.now()
  server.stalledAtMs ??= monotonicMs
  return monotonicMs - server.stalledAtMs >= STALLED_MS
}

/** The default time of a call. */
const STALLED_MS = CALL_TIMEOUT_MS
