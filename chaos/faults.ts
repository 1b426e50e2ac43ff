/** The links between clients and servers that a fault hits. Redis behind one address has one link for each client. */
export interface Ways {
  clients: readonly number[]
  servers: readonly number[]
}

export type Direction = 'toServer' | 'toClient'

/** A fault, and when it begins: milliseconds after the start of its episode. */
export type Fault = { atMs: number } & FaultKind

export type KindName = FaultKind['kind']

export type FaultKind = NetworkFault | ClientFault | ServerFault | RedisFault | PostgresFault | SqliteFault

export type NetworkFault =
  | { kind: 'late-replies' | 'late-requests'; ways: Ways; byMs: number; forMs: number }
  | { kind: 'held'; ways: Ways; direction: Direction; forMs: number }
  | { kind: 'silent'; ways: Ways; forMs: number }
  | { kind: 'cut'; ways: Ways }

export type ClientFault =
  | { kind: 'process-paused'; client: number; forMs: number }
  | { kind: 'process-killed'; client: number; downMs: number }
  | { kind: 'loop-blocked'; client: number; forMs: number }
  /** The application releases all advisory locks of its connection, which the driver uses, too. */
  | { kind: 'locks-released'; client: number }
  /** The wall clocks of these clients are wrong for a time. */
  | { kind: 'client-clock-stepped'; clients: readonly number[]; byMs: number; forMs: number }

/** Server 0 is the master where there are replicas. */
export type ServerFault =
  | { kind: 'server-stalled'; servers: readonly number[]; forMs: number }
  | { kind: 'server-killed'; servers: readonly number[]; downMs: number }
  | { kind: 'server-clock-stepped'; servers: readonly number[]; byMs: number; forMs: number }
  /** For longer than a call may take, while no other fault hits anything. */
  | { kind: 'server-hung'; server: number; forMs: number }
  | { kind: 'listeners-killed' | 'connections-killed'; servers: readonly number[] }

export type RedisFault =
  | { kind: 'restarted-empty'; server: number; downMs: number }
  | { kind: 'data-flushed'; server: number }
  | { kind: 'scripts-flushed'; servers: readonly number[] }
  | { kind: 'out-of-memory'; servers: readonly number[]; forMs: number }
  /** For longer than the longest lease, while no other fault hits anything. */
  | { kind: 'memory-full'; servers: readonly number[]; forMs: number }
  /** It starts again while its clock is wrong by `byMs`, which is set right after `wrongMs`. */
  | {
      kind: 'restarted-at-wrong-time'
      server: number
      data: Data
      /** How old the data is. */
      lagMs: number
      byMs: number
      wrongMs: number
      downMs: number
    }
  // Behind one address.
  | {
      kind: 'failover'
      by: 'replicaof' | 'command'
      gapMs: number
      leave: Leave
      leaveMs: number
      cut: readonly number[]
    }
  | { kind: 'demoted-and-back'; forMs: number }
  | { kind: 'too-few-replicas'; by: 'count' | 'stalled-replica'; forMs: number }
  | { kind: 'master-killed'; lagMs: number; downMs: number }
  // Behind Sentinel.
  | { kind: 'sentinel-failover'; by: 'command' | 'stalled-master' | 'killed-master'; lagMs: number }
  // Redlock.
  | { kind: 'minority-lost'; servers: readonly number[]; by: 'killed' | 'stalled'; forMs: number }
  /** Another server takes its address, which has been its replica, and lags by `lagMs`. */
  | { kind: 'node-failed-over'; server: number; lagMs: number; downMs: number }
  /** One server after the other, so long apart that each votes again before the next one. */
  | { kind: 'rolling-restart'; data: 'kept' | 'none'; everyMs: number; forMs: number }
  // Cluster.
  | { kind: 'slot-moved'; lockName: string; toNext: number; forMs: number }
  | { kind: 'cluster-failover'; shard: number; by: 'command' | 'killed-master'; downMs: number }

/** What a server has after its restart: everything, the data of an earlier time, or nothing. */
export type Data = 'kept' | 'older' | 'none'

/** The connections that stay on the old master after a failover. If only some stay, those of `cut` are cut. */
export type Leave = 'all' | 'none' | 'subscriptions' | 'commands' | 'some'

export type PostgresFault =
  | { kind: 'immediate-shutdown'; downMs: number }
  | { kind: 'table-truncated' }
  | { kind: 'row-locked'; lockName: string; forMs: number }
  | { kind: 'table-locked'; forMs: number }
  /** The database becomes what it was `lagMs` before: by a copy of it, or by the data of its tables and sequences. */
  | { kind: 'database-put-back'; from: Copy; lagMs: number }
  /** Statistics are made of this, and then a crowd of claims queues, for the longest part for `lockName`. */
  | { kind: 'old-statistics'; of: Belief; waiters: number; lockName: string; forMs: number }
  | { kind: 'timeout-shortened'; setting: Timeout; toMs: number; forMs: number }

/** The whole database, or the data of its tables and sequences. */
export type Copy = 'template' | 'data'

/** What the planner believes of the queue: that it is empty, or that all places in it have expired. */
export type Belief = 'empty' | 'expired'

export type Timeout =
  | 'statement_timeout'
  | 'lock_timeout'
  | 'idle_session_timeout'
  | 'idle_in_transaction_session_timeout'

export type SqliteFault =
  | { kind: 'file-locked'; by: 'IMMEDIATE' | 'EXCLUSIVE'; forMs: number }
  | { kind: 'checkpointed' }
  | { kind: 'rows-deleted' }
