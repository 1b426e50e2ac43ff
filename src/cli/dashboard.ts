import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { parseArgs } from 'node:util'
import { chooseUrl } from '../connect.ts'
import { checkLockName } from '../core/arguments.ts'
import { messageOf } from '../core/foreign-errors.ts'
import { createAccessToken, withAccessToken } from '../dashboard/access-token.ts'
import { createDashboard, toNodeHandler } from '../dashboard/index.ts'
import { UsageError } from './exit-codes.ts'
import { FLAG, parsing, TEXT, userAtHost } from './store.ts'
import { say } from './text.ts'

/** Serves the dashboard until a signal ends it. */
export async function main(args: readonly string[]): Promise<number> {
  const options = parsing(() => parse(args))
  const { host, port, urls, allowActions, by, electionPrefixes } = options
  const server = createServer()
  server.listen(port, host)
  try {
    await once(server, 'listening')
  } catch (error) {
    throw new UsageError(`cannot listen on ${host}, port ${port}: ${messageOf(error)}`)
  }
  const address = server.address() as AddressInfo
  const shown = address.family === 'IPv6' ? `[${address.address}]` : address.address
  const access = createAccessToken(`holdfast-${address.port}`)
  const dashboard = withAccessToken(access, { user: by }, (authorize) =>
    createDashboard({
      stores: urls.map((url) => ({ url })),
      authorize,
      allowActions,
      electionPrefixes,
      hosts: [...LOOPBACK, shown, ...options.hosts],
    }),
  )
  server.on('request', toNodeHandler(dashboard))
  process.stdout.write(`http://${shown}:${address.port}/?token=${access.token}\n`)
  if (!isLoopback(address.address)) say('anyone who can reach this address and knows the URL can see the dashboard')
  await Promise.race([once(process, 'SIGINT'), once(process, 'SIGTERM')])
  server.close()
  await dashboard.close()
  server.closeAllConnections()
  return 0
}

/** Names that a foreign site cannot have in a DNS server. Any port: an SSH tunnel may have another one. */
const LOOPBACK = ['localhost', '127.0.0.1', '[::1]']
const isLoopback = (address: string): boolean => address === '::1' || address.startsWith('127.')

function parse(args: readonly string[]) {
  const { values } = parseArgs({
    args: [...args],
    options: {
      url: { ...TEXT, multiple: true },
      port: TEXT,
      host: TEXT,
      'allow-host': { ...TEXT, multiple: true },
      'allow-actions': FLAG,
      by: TEXT,
      elections: { ...TEXT, multiple: true },
    },
  })
  const { url = [undefined], port = '7411', host = '127.0.0.1', by = userAtHost() } = values
  if (!/^\d{1,5}$/.test(port) || Number(port) > 65_535) throw new UsageError(`--port must be a port, but is "${port}"`)
  checkLockName(by, '--by')
  return {
    urls: url.map(chooseUrl),
    host,
    port: Number(port),
    hosts: values['allow-host'] ?? [],
    allowActions: values['allow-actions'] ?? false,
    by,
    electionPrefixes: values.elections ?? [],
  }
}
