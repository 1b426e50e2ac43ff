import { checkMethods, waitMsFrom } from '../core/arguments.ts'
import { CLOSE_TIMEOUT_MS } from '../core/limits.ts'
import { checkOptions, optionNames } from '../core/options.ts'
import { pause } from '../core/time/abort.ts'
import { systemClock } from '../core/time/clock.ts'
import type { CloseOptions } from '../primitives/instance.ts'

/** The member of a primitive that is used. */
export interface ClosableInstance {
  close(options?: CloseOptions): Promise<void>
}

/** Closing, next to a server that stops in its own steps. */
export interface Closing {
  /** The server takes no new requests. Those that run may still take locks, for at most `drainSeconds`. */
  begin(): void
  /** The last request has been answered. */
  served(): void
  /** Resolves when the instances are closed. Rejects if one of them could not be closed. */
  done(): Promise<void>
}

const OPTIONS = optionNames<CloseOptions>({ drainSeconds: true, deadlineSeconds: true })

/**
 * Closes instances after the last request has been answered, or when `drainSeconds` (default 10) have passed since
 * `begin`. An instance that is closed at once would reject the claims of requests that were accepted before; one that
 * waits for the server without a bound would never abort the signal of the request that hangs. Meanwhile it closes the
 * connections of `server` that become idle: a client may keep them open for the keep-alive timeout, in Fastify 72 s.
 *
 * @throws `InvalidArgumentError`
 */
export function closingOf(
  instances: readonly ClosableInstance[],
  options: CloseOptions = {},
  server: object = {},
): Closing {
  const { drainSeconds = 10, deadlineSeconds = CLOSE_TIMEOUT_MS / 1_000 } = checkOptions(options, OPTIONS, 'close')
  const drainMs = waitMsFrom('drainSeconds', drainSeconds)
  waitMsFrom('deadlineSeconds', deadlineSeconds)
  for (const each of instances)
    checkMethods('lock', each, ['close'], 'an instance with close, such as a DistributedLock')

  const served = new AbortController()
  let running: Promise<PromiseSettledResult<void>[]> | undefined
  const run = async (): Promise<PromiseSettledResult<void>[]> => {
    const untilMs = systemClock.now().monotonicMs + drainMs
    void closeIdleConnections(server, served.signal)
    await pause(systemClock, drainMs, served.signal)
    const restSeconds = Math.max(0, untilMs - systemClock.now().monotonicMs) / 1_000
    return Promise.allSettled(instances.map((each) => each.close({ drainSeconds: restSeconds, deadlineSeconds })))
  }
  return {
    begin() {
      running ??= run()
    },
    served: () => served.abort(),
    async done() {
      running ??= run()
      for (const end of await running) if (end.status === 'rejected') throw end.reason
    },
  }
}

async function closeIdleConnections(server: object, served: AbortSignal): Promise<void> {
  // HTTP/2 has no such method.
  const { closeIdleConnections: closeIdle } = server as { closeIdleConnections?: () => void }
  while (closeIdle !== undefined && !served.aborted) {
    closeIdle.call(server)
    await pause(systemClock, IDLE_CHECK_MS, served)
  }
}

const IDLE_CHECK_MS = 100
