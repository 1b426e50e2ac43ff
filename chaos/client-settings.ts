import type { StoreSettings } from './connect.ts'

export interface ClientSettings extends StoreSettings {
  /** The file of the history. */
  file: string
  seed: string
  /** Clients in Python run worker.py, which does the same as worker.ts. */
  language: 'node' | 'python'
  /** Where the records are that a holder increments: see record.ts. Absent: it only holds its lock. */
  recordPort?: number
  names: string[]
  /** What this client alone claims, and holds for as long as it can. */
  kept: Kept[]
  tasks: number
  /** How often a task does each kind of work, compared with the others. What the driver cannot do has no weight. */
  work?: Partial<Record<Work, number>>
}

export interface Kept {
  name: string
  kind: 'lock' | 'read' | 'permits'
}

/** What a task does next: see tasks.ts. */
export type Work = 'lock' | 'sharing' | 'permits' | 'election' | 'rate'
