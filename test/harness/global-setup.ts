import type { TestProject } from 'vitest/node'
import { provision } from './binaries.ts'
import { startSharedServers } from './shared-servers.ts'

/** vitest's `globalSetup`: starts the servers that all test files share, and returns the function that ends them. */
export default async function setup(project: Pick<TestProject, 'provide'>): Promise<() => Promise<void>> {
  if (process.env['HOLDFAST_TEST_SERVERS'] !== 'none') await provision()
  const { servers, stop } = await startSharedServers()
  project.provide('servers', servers)
  return stop
}
