import { chmodSync, mkdtempSync, rmSync, statSync } from 'node:fs'
import { homedir, tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { reapFolder } from './reaper.ts'

export interface Folder {
  path: string
  remove(): void
}

/** A new folder that another user can enter (PostgreSQL refuses root), removed when the runner ends, at the latest. */
export function makeFolder(name: string): Folder {
  const parent = [tmpdir(), '/var/tmp', '/dev/shm'].find(isOpenToAll) ?? tmpdir()
  const path = mkdtempSync(join(parent, `holdfast-${name}-`))
  chmodSync(path, 0o755)
  const forget = reapFolder(path)
  return {
    path,
    remove() {
      // A process that has just been ended may still write there.
      rmSync(path, { recursive: true, force: true, maxRetries: 10, retryDelay: 50 })
      forget()
    },
  }
}

/** What runs share: unpacked packages, the built clock shim. */
export function cacheFolder(): string {
  return join(process.env['XDG_CACHE_HOME'] || join(homedir(), '.cache'), 'holdfast')
}

/** On some machines only root may enter /tmp, so that another user cannot use a folder in it. */
function isOpenToAll(path: string): boolean {
  const mode = statSync(path, { throwIfNoEntry: false })?.mode
  if (mode === undefined || (mode & 0o001) === 0) return false
  return path === dirname(path) || isOpenToAll(dirname(path))
}
