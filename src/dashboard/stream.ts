import { onAbort } from '../core/time/abort.ts'
import type { Clock, Timer } from '../core/time/clock.ts'
import type { Poller } from './poller.ts'
import type { Step, Welcome } from './wire.ts'

/** One store as a stream sees it. */
export interface StreamedStore {
  readonly poller: Pick<Poller, 'watch'>
  full(): Step
  /** Whether it was read at least once. */
  isRead(): boolean
}

export interface StreamParts {
  readonly clock: Clock
  /** Ends the stream. */
  readonly signal: AbortSignal
  /** Called once, however the stream ends. */
  onEnd(): void
}

/**
 * Server-sent events: a welcome, then everything, then what changes. A viewer that reads too slowly misses steps, and
 * gets everything again when it has caught up. So no more than one full step is buffered for it.
 */
export function eventStream(
  stores: readonly StreamedStore[],
  welcome: Welcome,
  { clock, signal, onEnd }: StreamParts,
): ReadableStream {
  const encoder = new TextEncoder()
  /** Stores of which the next step has to be a full one. */
  const stale = new Set(stores)
  const cleanUp: (() => void)[] = [onEnd]
  let keepAlive: Timer | undefined
  const end = (): void => {
    keepAlive?.cancel()
    for (const each of cleanUp.splice(0)) each()
  }
  return new ReadableStream<Uint8Array>(
    {
      start(controller) {
        const hasRoom = (): boolean => (controller.desiredSize ?? 0) > 0
        const send = (text: string): void => controller.enqueue(encoder.encode(text))
        const sendEvent = (name: string, data: unknown): void =>
          send(`event: ${name}\ndata: ${JSON.stringify(data)}\n\n`)
        const beat = (): void => {
          // A comment. It also lets proxies and this server notice that the viewer is gone.
          if (hasRoom()) send(':\n\n')
          keepAlive = clock.setTimer(beat, KEEP_ALIVE_MS)
        }
        const close = (): void => {
          end()
          controller.close()
        }
        sendEvent('welcome', welcome)
        for (const store of stores) {
          const stop = store.poller.watch((step) => {
            if (!hasRoom()) stale.add(store)
            else if (store.isRead() && stale.delete(store)) sendEvent('step', store.full())
            else sendEvent('step', step)
          })
          cleanUp.push(stop)
        }
        beat()
        cleanUp.push(onAbort(signal, close))
        if (signal.aborted) close()
      },
      cancel: end,
    },
    new ByteLengthQueuingStrategy({ highWaterMark: MAX_BUFFERED_BYTES }),
  )
}

const KEEP_ALIVE_MS = 15_000
const MAX_BUFFERED_BYTES = 256 * 1_024
