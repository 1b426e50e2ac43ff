import type { Driver } from '../../core/driver.ts'

/** One store, and as many processes' worth of drivers on it as a test asks for. */
export interface ConformanceStore {
  /** A new driver, with connections of its own, on the one store. The suite closes it. */
  driver(): Promise<Driver>
  /**
   * Cuts a driver’s connections as if its process had died, and resolves when the server has noticed. Needed where a lease
   * lasts as long as its session.
   */
  endSession?(driver: Driver): Promise<void>
  /** After the last test. */
  close(): Promise<void>
}
