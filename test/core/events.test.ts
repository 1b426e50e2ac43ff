import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { afterEach, describe, expect, it, vi } from 'vitest'
import { Emitter } from '../../src/core/events.ts'
import { memoryDriver } from '../../src/drivers/memory.ts'
import { DistributedLock, type LockEvent } from '../../src/index.ts'

const ended: (() => void)[] = []
afterEach(() => {
  for (const end of ended.splice(0)) end()
})

describe('events', () => {
  it('report the life of a claim, on the instance and on the diagnostics channels', async () => {
    const emitted: string[] = []
    const published: string[] = []
    const lock = new DistributedLock({ driver: memoryDriver() })
    for (const event of ['waiting', 'acquired', 'refused', 'released', 'lost'] satisfies LockEvent[]) {
      lock.on(event, ({ lockName }) => emitted.push(`${event} ${lockName}`))
      const trace = (message: unknown) => published.push(`${event} ${(message as { lockName: string }).lockName}`)
      subscribe(`holdfast:${event}`, trace)
      ended.push(() => unsubscribe(`holdfast:${event}`, trace))
    }
    const first = await lock.hold('name')
    await lock.acquire('name', { blocking: false })
    const second = lock.hold('name', { blocking: true })
    await first.release()
    await second
    await lock.close()
    expect(emitted).toEqual([
      'acquired name',
      'refused name',
      'waiting name',
      'released name',
      'acquired name',
      'released name',
    ])
    expect(published).toEqual(emitted)
  })

  it('create no payload while there is no listener', () => {
    const emitter = new Emitter()
    const make = () => {
      throw new Error('made')
    }
    emitter.emit('listenFailed', make)
    const stop = emitter.on('listenFailed', () => undefined)
    expect(() => emitter.emit('listenFailed', make)).toThrow('made')
    stop()
    emitter.emit('listenFailed', make)
  })

  it('a listener that throws or rejects causes a warning, and ends neither the lock nor the process', async () => {
    const warn = vi.spyOn(process, 'emitWarning').mockImplementation(() => {})
    await using lock = new DistributedLock({ driver: memoryDriver() })
    lock.on('acquired', () => {
      throw new Error('in a listener')
    })
    lock.on('acquired', async () => {
      throw new Error('in an async listener')
    })
    let calls = 0
    lock.on('acquired', () => {
      calls += 1
    })
    expect((await lock.acquire('name')).acquired).toBe(true)
    const warnings = warn.mock.calls.map(([message, options]) => [String(message), options])
    vi.restoreAllMocks()
    expect(calls).toBe(1)
    expect(warnings).toEqual(
      ['in a listener', 'in an async listener'].map((message) => [
        `a listener of "acquired" threw Error: ${message}`,
        expect.objectContaining({ code: 'HOLDFAST_LISTENER_FAILED', detail: expect.stringContaining(message) }),
      ]),
    )
  })
})

describe('a listener', () => {
  it('that removes itself and registers again is called once for one event', () => {
    const emitter = new Emitter()
    let calls = 0
    let stop: () => void
    const again = (): void => {
      calls += 1
      stop()
      if (calls < 100) stop = emitter.on('listenFailed', again)
    }
    stop = emitter.on('listenFailed', again)
    emitter.emit('listenFailed', () => ({ error: undefined }))
    expect(calls).toBe(1)
  })

  it('that is registered twice is called twice, and each registration is removed separately', () => {
    const emitter = new Emitter()
    let calls = 0
    const listener = (): void => {
      calls += 1
    }
    const stop = emitter.on('listenFailed', listener)
    emitter.on('listenFailed', listener)
    emitter.emit('listenFailed', () => ({ error: undefined }))
    expect(calls).toBe(2)
    stop()
    stop()
    emitter.emit('listenFailed', () => ({ error: undefined }))
    expect(calls).toBe(3)
  })

  it('that another listener has removed during the event is not called', () => {
    const emitter = new Emitter()
    let stop = (): void => undefined
    emitter.on('listenFailed', () => stop())
    stop = emitter.on('listenFailed', () => {
      throw new Error('called')
    })
    emitter.emit('listenFailed', () => ({ error: undefined }))
  })
})
