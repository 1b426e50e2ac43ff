import { expect, it } from 'vitest'
import type { DriverListener } from '../../../src/core/driver.ts'
import { systemClock } from '../../../src/core/time/clock.ts'
import type { RedlockNode } from '../../../src/drivers/redis/driver.ts'
import { ReleaseBroadcast } from '../../../src/drivers/redlock/release-broadcast.ts'

const turn = (): Promise<void> => new Promise((resolve) => setTimeout(resolve, 5))

/** A node whose subscriptions the test opens and loses. */
function fakeNode() {
  const opened: { open(): void; lose(): void; isOpen: boolean }[] = []
  const subscriber = ({ closed }: { closed(cause: Error): void }) => {
    let open = (): void => {}
    const isReady = new Promise<void>((resolve) => {
      open = resolve
    })
    const own = { open, lose: () => closed(new Error('lost')), isOpen: true }
    opened.push(own)
    return Promise.resolve({
      subscribe: () => isReady,
      end: () => {
        own.isOpen = false
      },
    })
  }
  const connection = { nodes: async () => [{ subscriber }] }
  return { opened, node: { connection } as unknown as RedlockNode }
}

it('every subscription of a Redlock is ended, although an older one failed while it was opened', async () => {
  const fakes = [fakeNode(), fakeNode(), fakeNode()]
  const nodes = fakes.map(({ node }) => node)
  const voters = { nodes, names: ['1', '2', '3'], quorum: 2, timeoutMs: 1_000, failed: () => {} }
  const broadcast = new ReleaseBroadcast(voters, systemClock)
  const listener = (): DriverListener => ({ wake: () => {}, lost: () => {}, disconnected: () => {} }) as never
  const first = broadcast.listen(listener()).catch(() => 'failed')
  await turn()
  // The first node answers, and is lost before the others have answered.
  fakes[0]?.opened[0]?.open()
  await turn()
  fakes[0]?.opened[0]?.lose()
  const second = broadcast.listen(listener())
  await turn()
  for (const { opened } of fakes) opened[1]?.open()
  await second
  for (const { opened } of fakes) opened[0]?.open()
  await first
  broadcast.end()
  await turn()
  expect(fakes.flatMap(({ opened }) => opened.slice(1).map(({ isOpen }) => isOpen))).toEqual([false, false, false])
})
