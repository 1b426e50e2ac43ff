import type { Scenario } from '../stage.ts'
import { cluster } from './cluster.ts'
import { advisory, postgres } from './postgres.ts'
import { redis } from './redis.ts'
import { redlock } from './redlock.ts'
import { memory, sqlite } from './sqlite.ts'

/** What `--driver` selects. `memory` is no distributed lock: a run with it must fail. */
export const DRIVERS: Readonly<Record<string, Scenario>> = {
  redis,
  redlock,
  cluster,
  postgres,
  advisory,
  sqlite,
  memory,
}
