import type { DistributedLock, Driver } from 'holdfast'

/** A store with channels that its drivers listen to, and a forger that can send to them. */
export interface ChannelStore extends AsyncDisposable {
  readonly name: string
  /** The clients under test: one for each client package. They live as long as the run. */
  readonly clients: readonly ChannelClient[]
  /** Another client, which holds the locks. */
  readonly other: ChannelClient
  /** Resolves when the claim waits and listens, with what a reader of the store sees of it. */
  waiting(lockName: string): Promise<Waiting>
  send(channel: string, message: Buffer): Promise<void>
  /** The newest genuine messages. */
  readonly heard: readonly string[]
}

export interface ChannelClient {
  readonly lock: DistributedLock
  readonly driver: Driver
}

export interface Waiting {
  readonly claimId: string
  readonly channels: readonly string[]
}

export async function until<T>(look: () => Promise<T | undefined>): Promise<T> {
  for (let tries = 0; tries < 400; tries += 1) {
    const found = await look()
    if (found !== undefined) return found
    await new Promise((resolve) => setTimeout(resolve, 10))
  }
  throw new Error('the claim does not wait')
}
