import { messageOf } from '../core/foreign-errors.ts'

/** Something about a store that endangers locks, or that makes them slow or hard to operate. */
export interface Finding {
  /** Stable, for scripts and for docs/reference/doctor.md. */
  readonly code: FindingCode
  /** `error`: locks do not work, or exclude too little. `warning`: they will not in some situation. */
  readonly severity: 'error' | 'warning'
  /** The server, if the store has several. */
  readonly where?: string
  /** What is wrong. */
  readonly what: string
  /** Why it matters. */
  readonly why: string
  /** What to change: a command or a setting where there is one. */
  readonly fix: string
}

/** The store could not be used at all. */
export const unreachable = (error: unknown, fix = 'Check the address, the network and the server.'): Finding => ({
  code: 'UNREACHABLE',
  severity: 'error',
  what: messageOf(error),
  why: 'No lock can be acquired.',
  fix,
})

export type FindingCode =
  | 'UNREACHABLE'
  | 'SLOW'
  | 'SHORT_TTL'
  | 'NO_INSPECTION'
  | 'CLOCK_OFFSET'
  | 'NO_WAKE_UPS'
  | 'NO_RIGHTS'
  | 'REDIS_TOO_OLD'
  | 'REDIS_REPLICA'
  | 'REDIS_EVICTION'
  | 'REDIS_NO_PERSISTENCE'
  | 'REDIS_MEMORY'
  | 'REDIS_TOO_FEW_REPLICAS'
  | 'REDLOCK_FEW_NODES'
  | 'REDLOCK_SAME_SERVER'
  | 'REDLOCK_REPLICAS'
  | 'POSTGRES_TOO_OLD'
  | 'POSTGRES_READ_ONLY'
  | 'POSTGRES_SCHEMA'
  | 'POSTGRES_TIMEOUT'
  | 'POSTGRES_POOLER'
  | 'POSTGRES_NOT_DURABLE'
