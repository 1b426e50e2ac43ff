import type { LossListener } from '../../core/driver.ts'
import type { Row } from './connections.ts'
import { stolenBy } from './notifications.ts'

/**
 * Reads which leases were ended by force, from the table that records them. A poll, although the server could notify:
 * a connection that listens is woken by every notification in its database, so each process that only holds leases
 * would make the hand-offs of all others slower, and would need a connection of its own.
 */
export class ForcedReleases {
  readonly #read: (after: string) => Promise<Row>
  /** All rows up to this id have been reported, or are old. */
  #done = '0'
  /** The rows above it that have been reported. Their ids are not visible in order. */
  #reported = new Set<string>()

  constructor(read: (after: string) => Promise<Row>) {
    this.#read = read
  }

  readonly look = async (listeners: ReadonlySet<LossListener>): Promise<void> => {
    const row = await this.#read(this.#done)
    const recent = JSON.parse(String(row['recent'])) as [id: string, claimId: string, by: string][]
    const news = recent.filter(([id]) => !this.#reported.has(id))
    this.#done = String(row['done'])
    this.#reported = new Set(recent.map(([id]) => id))
    for (const [, claimId, by] of news) {
      for (const listener of [...listeners]) listener.lost(claimId, stolenBy(by))
    }
  }
}
