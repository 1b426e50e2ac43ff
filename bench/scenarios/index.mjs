// @ts-check
import { scenario as acquire } from './acquire.mjs'
import { scenario as capacity } from './capacity.mjs'
import { scenario as crowd } from './crowd.mjs'
import { scenario as growthLeases } from './growth-leases.mjs'
import { scenario as growthProcesses } from './growth-processes.mjs'
import { scenario as growthWaiters } from './growth-waiters.mjs'
import { scenario as handOffs } from './hand-offs.mjs'
import { scenario as leases } from './leases.mjs'
import { scenario as rate } from './rate.mjs'
import { scenario as redlockFaults } from './redlock-faults.mjs'
import { scenario as startUp } from './start-up.mjs'
import { scenario as waiters } from './waiters.mjs'
import { scenario as wakeUp } from './wake-up.mjs'

/** @import { Scenario } from '../types.d.ts' */

/** @type {readonly Scenario[]} */
export const scenarios = [
  acquire,
  handOffs,
  waiters,
  wakeUp,
  redlockFaults,
  leases,
  rate,
  startUp,
  growthWaiters,
  growthProcesses,
  crowd,
  growthLeases,
  capacity,
]
