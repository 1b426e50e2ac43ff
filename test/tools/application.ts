import { cpSync, mkdirSync, mkdtempSync, rmSync, symlinkSync } from 'node:fs'
import { join } from 'node:path'
import { inject } from 'vitest'
import { makeFolder } from '../harness/folders.ts'

const root = join(import.meta.dirname, '../..')

/** The tool that `npm run matrix` tests, and the folder in which it is installed. */
export const { HOLDFAST_MATRIX_TOOL: matrixTool = '', HOLDFAST_MATRIX_TOOLS: matrixFolder = '' } = process.env

/**
 * A folder of an application with the package and clients. In the matrix it is below the tools, so that it finds them.
 */
export function makeApplication(): { path: string; remove(): void } {
  const path = matrixFolder === '' ? undefined : mkdtempSync(join(matrixFolder, 'application-'))
  const folder =
    path === undefined ? makeFolder('tools') : { path, remove: () => rmSync(path, { recursive: true, force: true }) }
  const modules = join(folder.path, 'node_modules')
  mkdirSync(modules, { recursive: true })
  for (const part of ['dist', 'package.json']) {
    cpSync(join(root, part), join(modules, 'holdfast', part), { recursive: true })
  }
  for (const client of ['ioredis', 'pg', 'libsql']) {
    symlinkSync(join(root, 'node_modules', client), join(modules, client))
  }
  return folder
}

/** A URL of each kind of store that the tools are tested with. */
export function storeUrls(folder: string): [name: string, url: string][] {
  const { redis, postgres = '' } = inject('servers')
  return [
    ['sqlite', `sqlite:${join(folder, 'locks.db')}`],
    ['redis', redis?.[0] ?? ''],
    ['postgres', postgres],
  ]
}

/** Code that shows that a lock excludes. It needs `DistributedLock`. */
export const EXCLUSION = `
  async function exclusion(url, name) {
    const lock = new DistributedLock({ url })
    const other = new DistributedLock({ url })
    const { acquired } = await lock.withLock(name, () => other.acquire(name))
    const held = await lock.withLock(name, (lease) => lease.held)
    await Promise.all([lock.close(), other.close()])
    return [acquired, held].join(' ')
  }`
