import { expect, test } from 'vitest'
import { systemClock } from '../../src/core/time/clock.ts'
import { eventStream } from '../../src/dashboard/stream.ts'
import type { Step } from '../../src/dashboard/wire.ts'

/** A stream of one store whose steps the test makes itself. */
function openStream(isRead = true) {
  let viewer: ((step: Step) => void) | undefined
  let ended = 0
  const stop = new AbortController()
  const store = {
    poller: {
      watch(each: (step: Step) => void) {
        viewer = each
        return () => {
          viewer = undefined
        }
      },
    },
    full: (): Step => ({ store: 0, now: 1, full: { base: 0, info: { name: 'x'.repeat(300_000) }, history: [] } }),
    isRead: () => isRead,
  }
  const parts = { clock: systemClock, signal: stop.signal, onEnd: () => (ended += 1) }
  const stream = eventStream([store], { stores: [], actions: false }, parts) as ReadableStream<Uint8Array>
  return {
    reader: stream.getReader(),
    step: (more: Partial<Step> = {}) => viewer?.({ store: 0, now: 2, ...more }),
    isWatching: () => viewer !== undefined,
    ended: () => ended,
    stop: () => stop.abort(),
  }
}

async function readAll(reader: ReadableStreamDefaultReader<Uint8Array>, isEnough: (text: string) => boolean) {
  let text = ''
  while (!isEnough(text)) text += Buffer.from((await reader.read()).value ?? []).toString()
  return text
}

const eventsIn = (text: string): string[] =>
  [...text.matchAll(/^data: (.{0,40})/gm)].map(([, data = '']) => (data.includes('"full"') ? 'full' : data))

test('a viewer that does not read gets everything again later, instead of a growing backlog', async () => {
  const { reader, step } = openStream()
  for (let steps = 0; steps < 1_000; steps += 1) step()
  const first = await readAll(reader, (text) => text.includes('"full"') && text.endsWith('\n\n'))
  expect(eventsIn(first)).toEqual(['{"stores":[],"actions":false}', 'full'])
  step()
  step({ now: 3 })
  const second = await readAll(reader, (text) => text.includes('"full"') && text.endsWith('\n\n'))
  expect(eventsIn(second)).toEqual(['full'])
  await reader.cancel()
})

test('a store that was never read sends why, and everything with its first reading', async () => {
  const { reader, step } = openStream(false)
  step({ error: 'it is down' })
  expect(await readAll(reader, (text) => text.includes('it is down'))).not.toContain('"full"')
  await reader.cancel()
})

test('a stream that is cancelled or ended watches nothing any more, and says so once', async () => {
  const cancelled = openStream()
  await cancelled.reader.cancel()
  const ended = openStream()
  ended.stop()
  ended.stop()
  for (const { isWatching, ended: count } of [cancelled, ended]) {
    expect(isWatching()).toBe(false)
    expect(count()).toBe(1)
  }
})
