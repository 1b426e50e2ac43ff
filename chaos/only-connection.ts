import type { Client } from 'pg'
import { postgresOn, type StoreSettings, urlOf } from './connect.ts'

/** The only connection of a client process: the driver is on it, and the application uses it, too. */
export interface OnlyConnection {
  readonly driver: Awaited<ReturnType<typeof postgresOn>>
  /** Resolves when the connection has ended. Then the application needs another one. */
  readonly ended: Promise<void>
  /** Releases all advisory locks of the session, as an application may do that has some of its own. */
  unlockAll(): Promise<void>
  close(): Promise<void>
}

const CONNECT_MS = 1_000
const TRY_AGAIN_MS = 100

/** Tries until it is connected: the server may be under a fault. */
export async function openOnlyConnection(settings: StoreSettings): Promise<OnlyConnection> {
  const { default: pg } = await import('pg')
  const url = urlOf({ ...settings, driver: 'postgres' })
  for (;;) {
    const client = new pg.Client({ connectionString: url, connectionTimeoutMillis: CONNECT_MS })
    client.on('error', () => {})
    const ended = new Promise<void>((resolve) => void client.on('end', () => resolve()))
    if (await isConnected(client)) return onClient(settings, client, ended)
    await new Promise((resolve) => setTimeout(resolve, TRY_AGAIN_MS))
  }
}

const isConnected = (client: Client): Promise<boolean> =>
  client.connect().then(
    () => true,
    () =>
      client.end().then(
        () => false,
        () => false,
      ),
  )

async function onClient(settings: StoreSettings, client: Client, ended: Promise<void>): Promise<OnlyConnection> {
  const driver = await postgresOn(settings, client)
  return {
    driver,
    ended,
    unlockAll: async () => void (await client.query('SELECT pg_advisory_unlock_all()')),
    close: () => driver.close().then(() => client.end()),
  }
}
