import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { createDashboard, type DashboardOptions, toNodeHandler } from 'holdfast/dashboard'
import { inject } from 'vitest'

/** The built dashboard on a port of its own, mounted without a token. */
export async function serveDashboard(
  options: Partial<DashboardOptions> & Pick<DashboardOptions, 'stores'>,
): Promise<AsyncDisposable & { readonly url: string }> {
  const dashboard = createDashboard({ authorize: 'none', ...options })
  const server = createServer(toNodeHandler(dashboard)).listen(0, '127.0.0.1')
  await once(server, 'listening')
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/`,
    async [Symbol.asyncDispose]() {
      server.close()
      await dashboard.close()
      server.closeAllConnections()
    },
  }
}

/** A Redis store that no other test uses: the shared server, with a prefix of its own. */
export const ownRedisUrl = (): string => `${inject('servers').redis?.[0]}?prefix=${randomUUID().slice(0, 8)}:`
