import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import pg from 'pg'
import postgres from 'postgres'
import { afterAll, beforeAll, describe, it } from 'vitest'
import type { Driver } from '../../../src/core/driver.ts'
import { openPostgres, postgresDriver } from '../../../src/drivers/postgres.ts'
import { openPostgresAdvisory, postgresAdvisoryDriver } from '../../../src/drivers/postgres-advisory.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'
import { type Folder, makeFolder } from '../../harness/folders.ts'
import { claimOn, grantOn, unique } from '../../harness/postgres-context.ts'
import { type Server, startPostgres } from '../../harness/servers.ts'

let folder: Folder
let server: Server
let admin: pg.Pool
let certFile: string
beforeAll(async () => {
  folder = makeFolder('tls')
  certFile = join(folder.path, 'cert.pem')
  const keyFile = join(folder.path, 'key.pem')
  selfSign(certFile, keyFile)
  server = await startPostgres({ tls: { cert: readFileSync(certFile, 'utf8'), key: readFileSync(keyFile, 'utf8') } })
  admin = new pg.Pool({ connectionString: server.url, max: 2 })
})
afterAll(async () => {
  await admin.end()
  await server[Symbol.asyncDispose]()
  folder.remove()
})

describe.concurrent('postgres: TLS and the other parameters of a connection', { timeout: 60_000 }, () => {
  const openers = { postgres: openPostgres, 'postgres-advisory': openPostgresAdvisory }
  for (const [name, open] of Object.entries(openers)) {
    it(`${name}: those of a URL apply to every connection`, async () => {
      const application = unique(name)
      const parameters = new URLSearchParams({
        sslmode: 'verify-full',
        sslrootcert: certFile,
        application_name: application,
      })
      const driver = await open(`${server.url}?${parameters}`)
      await assertAllEncrypted(driver, application)
    })

    it(`${name}: a certificate that cannot be verified is an error, and nothing is sent in plain text`, async () => {
      const driver = await open(`${server.url}?sslmode=verify-full`)
      await assert.rejects(driver.acquire([claimOn(unique('untrusted'))], newCall()), {
        code: 'STORE_UNAVAILABLE',
        message: /self-signed certificate/,
      })
      await driver.close()
    })
  }

  const drivers = { postgres: postgresDriver, 'postgres-advisory': postgresAdvisoryDriver }
  for (const [name, create] of Object.entries(drivers)) {
    it(`${name}: those of a pool that is passed in apply to the connections beside it`, async () => {
      const ssl = { ca: readFileSync(certFile, 'utf8') }
      const [ofPg, ofSql] = [unique('pg'), unique('postgres')]
      const pool = new pg.Pool({ connectionString: server.url, ssl, application_name: ofPg })
      await assertAllEncrypted(create({ client: pool }), ofPg)
      await pool.end()
      const sql = postgres(server.url, { ssl, connection: { application_name: ofSql }, onnotice: () => {} })
      await assertAllEncrypted(create({ client: sql }), ofSql)
      await sql.end()
    })
  }
})

/** Counts all connections of a driver: for calls, for listening or waiting, and others. Closes the driver. */
async function assertAllEncrypted(driver: Driver, application: string): Promise<void> {
  const stop = await driver.listen?.({ wake() {}, granted() {}, lost() {}, disconnected() {} })
  assert.ok(await grantOn(driver, application))
  const text = `SELECT count(*)::int, bool_and(ssl) AS ssl
    FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = $1`
  const { rows } = await admin.query(text, [application])
  assert.ok(rows[0].count >= 2 && rows[0].ssl, JSON.stringify(rows))
  await stop?.()
  await driver.close()
}

function selfSign(certFile: string, keyFile: string): void {
  const args = ['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-days', '2']
  // postgres passes no address to TLS as a host name, and TLS then expects localhost.
  const subject = ['-subj', '/CN=127.0.0.1', '-addext', 'subjectAltName=IP:127.0.0.1,DNS:localhost']
  try {
    execFileSync('openssl', [...args, ...subject, '-keyout', keyFile, '-out', certFile], { stdio: 'pipe' })
  } catch (error) {
    throw new Error('the tests of TLS make a certificate with openssl: install it, and see the cause', { cause: error })
  }
}
