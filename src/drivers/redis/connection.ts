import type { MasterWatch } from './master-watch.ts'

/** What the driver needs of a client, whichever it is. */
export interface RedisConnection {
  readonly cluster: boolean
  /** Which server, as errors name it: a URL without its login. */
  readonly place: string
  /**
   * Why a command could not be sent, where the client itself only says that it could not. Absent where the client's own
   * error tells.
   */
  failureBehind?(error: unknown): unknown
  /** Sends a command to wherever `key` lives. Rejects with the client's own error. */
  command(key: string, args: readonly string[]): Promise<unknown>
  /**
   * Sends commands in one go, one after the other over one and the same connection. Rejects if one of them fails, or if
   * the connection ended after some of them: the rest is never sent over another one by itself. Absent on a Cluster.
   */
  together?(commands: readonly (readonly string[])[]): Promise<readonly unknown[]>
  /**
   * Called before a command is sent. Returns what tells, after the answer, whether the client may have sent the command
   * twice: its connection was lost meanwhile, and the answer may be that of the second time. Absent where the client
   * never sends a command again by itself.
   */
  watchResends?(): () => boolean | Promise<boolean>
  /** Absent where the client finds a new master by itself. */
  readonly master?: MasterWatch
  /** The masters: one, or one for each shard of a Cluster. */
  nodes(): Promise<readonly RedisNode[]>
  /**
   * The master that has this slot now. A key of the slot is asked for first: a client learns that a slot has moved only
   * from the answer to a command.
   */
  nodeOfSlot(slot: number): Promise<RedisNode>
}

export interface RedisNode {
  /** Stays the same while the node's address does. */
  readonly id: string
  command(args: readonly string[]): Promise<unknown>
  /** Opens a connection of its own to this node. `closed` is told once when it ends by itself. */
  subscriber(events: SubscriberEvents): Promise<Subscriber>
}

export interface SubscriberEvents {
  message(channel: string, text: string): void
  closed(cause: Error): void
}

export interface Subscriber {
  /** Resolves once the server has confirmed it. */
  subscribe(channel: string, sharded: boolean): Promise<void>
  /** Ends the connection at once. Never throws. */
  end(): void
}
