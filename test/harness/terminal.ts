import { fileURLToPath } from 'node:url'
import { openTerminal, type Terminal } from '../../scripts/support/terminal.mjs'
import { findBinaries } from './binaries.ts'
import { makeFolder } from './folders.ts'
import { reapProcess } from './reaper.ts'

/** A terminal of 80 × 24 with a shell in it, where `holdfast` is the built program. */
export async function startTerminal(url: string): Promise<Terminal & AsyncDisposable & { readonly folder: string }> {
  const { tmux } = await findBinaries(['tmux'])
  const folder = makeFolder('tty')
  const env = { ...process.env, ...tmux.env, NODE_OPTIONS: '', NO_COLOR: undefined, HOLDFAST_URL: url }
  const terminal = await openTerminal({ folder: folder.path, tmux: tmux.path, env })
  const forget = reapProcess(terminal.serverPid)
  await terminal.enter(`holdfast() { '${process.execPath}' '${PROGRAM}' "$@"; }; clear`)
  return {
    ...terminal,
    folder: folder.path,
    async [Symbol.asyncDispose]() {
      await terminal.close()
      forget()
      folder.remove()
    },
  }
}

const PROGRAM = fileURLToPath(new URL('../../dist/cli/main.js', import.meta.url))
