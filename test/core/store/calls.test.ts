import { describe, expect, it } from 'vitest'
import { Calls, type RequestKind, type Requests } from '../../../src/core/store/calls.ts'
import { systemClock } from '../../../src/core/time/clock.ts'
import { systemRandom } from '../../../src/core/time/random.ts'
import { memoryDriver } from '../../../src/drivers/memory.ts'

type Bounds<Request> = Pick<RequestKind<Request, Request>, 'maxLength' | 'split' | 'areInseparable' | 'partOf'>

/** Requests that are sent by a function of the test. */
function batchOf<Request, Answer>(
  bounds: Bounds<Request>,
  send: (requests: readonly Request[]) => Promise<readonly (Answer | Error)[]>,
): Requests<Request, Answer> {
  const calls = new Calls(memoryDriver(), { clock: systemClock, random: systemRandom, callTimeoutMs: 5_000 })
  return calls.requests<Request, Answer>({ what: 'consume', send, valid: (answer) => answer, ...(bounds as object) })
}

function recording(answer: (request: number) => number | Error = (request) => request * 10) {
  const lists: number[][] = []
  const batch = batchOf<number, number>({ maxLength: 3 }, async (requests) => {
    lists.push([...requests])
    return requests.map(answer)
  })
  return { lists, batch }
}

describe('the requests of one turn', () => {
  it('sends the requests of one turn of the event loop as one list, including those of its continuations', async () => {
    const { lists, batch } = recording()
    const first = batch.ask(1)
    const second = Promise.resolve()
      .then(() => undefined)
      .then(() => batch.ask(2))
    expect(await Promise.all([first, second])).toEqual([10, 20])
    await batch.ask(3)
    expect(lists).toEqual([[1, 2], [3]])
  })

  it('rule 13: a list has a maximum length, and further requests go into a second call at the same time', async () => {
    const { lists, batch } = recording()
    await Promise.all([1, 2, 3, 4].map((each) => batch.ask(each)))
    expect(lists).toEqual([
      [1, 2],
      [3, 4],
    ])
  })

  it('splits a long list into parts that overlap', async () => {
    const lists: number[] = []
    const batch = batchOf<number, number>({ maxLength: 8, split: 4 }, async (requests) => {
      lists.push(requests.length)
      return [...requests]
    })
    for (const count of [3, 4, 9, 17]) await Promise.all(Array.from({ length: count }, (_, each) => batch.ask(each)))
    expect(lists).toEqual([3, 2, 2, 5, 4, 6, 6, 5])
  })

  it('makes no part longer than twice the length at which it splits', async () => {
    const lists: number[] = []
    const batch = batchOf<number, number>({ maxLength: 1_000, split: 64 }, async (requests) => {
      lists.push(requests.length)
      return [...requests]
    })
    for (const count of [63, 64, 512]) await Promise.all(Array.from({ length: count }, (_, each) => batch.ask(each)))
    expect(lists).toEqual([63, 32, 32, 128, 128, 128, 128])
  })

  it('rule 13: inseparable requests stay in one list, and no other list exceeds the maximum length', async () => {
    const send = async (groups: readonly string[], bounds: { maxLength: number; split?: number }) => {
      const lists: string[] = []
      const areInseparable = (a: string, b: string) => a !== '-' && a === b
      const batch = batchOf<string, string>({ ...bounds, areInseparable }, async (requests) => {
        lists.push(requests.join(''))
        return [...requests]
      })
      expect(await Promise.all(groups.map((group) => batch.ask(group)))).toEqual(groups)
      return lists
    }
    expect(await send([...'--aaaa--'], { maxLength: 4 })).toEqual(['--', 'aaaa', '--'])
    expect(await send([...'aaaabb-'], { maxLength: 3 })).toEqual(['aaaa', 'bb-'])
    expect(await send([...'-aabbcc'], { maxLength: 4 })).toEqual(['-aa', 'bbcc'])
    expect(await send([...'aaaaaa'], { maxLength: 8, split: 4 })).toEqual(['aaaaaa'])
    expect(await send([...'-----aaa'], { maxLength: 8, split: 4 })).toEqual(['----', '-aaa'])
  })

  it('an error in the answer fails only its own request', async () => {
    const { batch } = recording((request) => (request === 2 ? new Error('two') : request))
    const results = await Promise.allSettled([1, 2, 3].map((each) => batch.ask(each)))
    expect(results.map((result) => result.status)).toEqual(['fulfilled', 'rejected', 'fulfilled'])
  })

  it('a call that fails fails all its requests', async () => {
    const failing = batchOf<number, number>({ maxLength: 10 }, () => Promise.reject(new Error('down')))
    await expect(Promise.all([failing.ask(1), failing.ask(2)])).rejects.toThrow('down')
  })

  it('rule 13: requests for different parts of the store are sent in different calls', async () => {
    const lists: string[] = []
    const partOf = (request: string) => request[0]
    const batch = batchOf<string, string>({ partOf }, (requests) => {
      lists.push(requests.join(' '))
      return requests[0]?.startsWith('b') ? new Promise(() => {}) : Promise.resolve([...requests])
    })
    const hung = batch.ask('b1')
    expect(await Promise.all(['a1', 'a2', 'c1'].map((each) => batch.ask(each)))).toEqual(['a1', 'a2', 'c1'])
    expect(lists).toEqual(['b1', 'a1 a2', 'c1'])
    hung.catch(() => undefined)
  })
})
