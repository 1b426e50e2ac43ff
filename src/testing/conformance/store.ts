import type { Driver } from '../../core/driver.ts'

/** One store, on which tests open as many drivers as they play processes. */
export interface ConformanceStore {
  /** Opens a new driver on the store, with connections of its own. The suite closes it. */
  driver(): Promise<Driver>
  /**
   * Cuts a driver's connections as if its process had died, and resolves when the server has noticed. Required if a
   * lease lasts as long as its session.
   */
  endSession?(driver: Driver): Promise<void>
  /** Called after the last test. */
  close(): Promise<void>
}
