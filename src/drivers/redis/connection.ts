import type { MasterWatch } from './master-watch.ts'

/** What the driver needs of a client, for every client library. */
export interface RedisConnection {
  readonly cluster: boolean
  /** The server, as errors name it: a URL without user name and password. */
  readonly place: string
  /**
   * Returns the reason why a command could not be sent, for clients whose own error does not say it. Absent for the
   * others.
   */
  failureBehind?(error: unknown): unknown
  /** Sends a command to the node that has `key`. Rejects with the client's own error. */
  command(key: string, args: readonly string[]): Promise<unknown>
  /**
   * Sends commands as one pipeline over one connection. Rejects if one of them fails, or if the connection ends after
   * some of them: the rest is never sent alone over another connection. Absent on a Cluster.
   */
  together?(commands: readonly (readonly string[])[]): Promise<readonly unknown[]>
  /**
   * Call it before a command is sent. The function it returns says, after the answer, whether the client may have sent
   * the command twice: its connection was lost meanwhile, and the answer may be that to the second copy. Absent for
   * clients that never send a command again by themselves.
   */
  watchResends?(): () => boolean | Promise<boolean>
  /**
   * Makes the client ask for the masters again, after it has sent a command to a replica. Resolves also if it does not
   * find them. Absent for clients that never do so.
   */
  findMasters?(): Promise<void>
  /** Absent for clients that find a new master by themselves. */
  readonly master?: MasterWatch
  /** The masters: one, or on a Cluster one for each shard. */
  nodes(): Promise<readonly RedisNode[]>
  /**
   * The master that has this slot now. It reads a key of the slot first, because a client learns only from the answer
   * to a command that a slot has moved.
   */
  nodeOfSlot(slot: number): Promise<RedisNode>
}

export interface RedisNode {
  /** Stays the same as long as the address of the node. */
  readonly id: string
  command(args: readonly string[]): Promise<unknown>
  /** Opens a separate connection to this node. `closed` is called once, if it ends by itself. */
  subscriber(events: SubscriberEvents): Promise<Subscriber>
}

export interface SubscriberEvents {
  message(channel: string, text: string): void
  closed(cause: Error): void
}

export interface Subscriber {
  /** Resolves when the server has confirmed it. */
  subscribe(channel: string, sharded: boolean): Promise<void>
  /** Closes the connection at once. Never throws. */
  end(): void
}
