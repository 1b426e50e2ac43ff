// @ts-check
// A real terminal without a person in front of it: a shell in tmux.
import { execFile } from 'node:child_process'
import { setTimeout as sleep } from 'node:timers/promises'
import { promisify } from 'node:util'

const run = promisify(execFile)

/**
 * @typedef {object} Terminal
 * @property {number} serverPid the process of tmux. When it ends, so does everything in the terminal
 * @property {number} shellPid
 * @property {(...keys: string[]) => Promise<void>} press presses keys by their names in tmux: `Enter`, `C-c`, `Down`
 * @property {(text: string) => Promise<void>} type types a text
 * @property {(command: string) => Promise<void>} enter types a command, and presses Enter
 * @property {() => Promise<string>} screen what is shown, without spaces at the ends of lines
 * @property {() => Promise<string>} styledScreen the same with ANSI codes
 * @property {(expected: RegExp) => Promise<string>} shows waits until the screen matches, and returns it
 * @property {() => Promise<{ alternate: boolean, cursor: boolean, wrap: boolean, title: string }>} modes
 * @property {(columns: number, rows: number) => Promise<void>} resize
 * @property {(file: string) => Promise<void>} record writes everything that is sent to the terminal to a file
 * @property {() => Promise<void>} hangUp closes the terminal, as a person closes its window
 * @property {() => Promise<void>} close
 */

/**
 * @param {object} options
 * @param {string} options.folder where the shell begins, and for the socket of tmux. Its path must be short
 * @param {string} [options.tmux]
 * @param {NodeJS.ProcessEnv} [options.env] of the shell
 * @param {number} [options.columns]
 * @param {number} [options.rows]
 * @param {number} [options.patienceMs] how long `shows` waits
 * @returns {Promise<Terminal>}
 */
export async function openTerminal({
  folder,
  tmux = 'tmux',
  env = process.env,
  columns = 80,
  rows = 24,
  patienceMs = 30_000,
}) {
  const shellEnv = { ...env, LC_ALL: 'C.UTF-8', TERM: 'xterm-256color' }
  const call = async (/** @type {string[]} */ ...args) => {
    const { stdout } = await run(tmux, ['-S', `${folder}/tmux`, '-f', '/dev/null', ...args], {
      cwd: folder,
      env: shellEnv,
    })
    return stdout
  }
  const show = (/** @type {string} */ format) => call('display-message', '-p', '-t', PANE, format)
  const screen = async () => (await call('capture-pane', '-p', '-t', PANE)).replaceAll(/ +$/gm, '').trimEnd()

  const size = ['-x', `${columns}`, '-y', `${rows}`]
  await call('start-server', ';', 'set', '-g', 'status', 'off', ';', 'new', '-d', '-s', 's', ...size, SHELL)
  await call('set', '-g', 'remain-on-exit', 'on')
  const [serverPid, shellPid] = (await show('#{pid} #{pane_pid}')).split(' ').map(Number)

  return {
    serverPid: Number(serverPid),
    shellPid: Number(shellPid),
    press: async (...keys) => void (await call('send-keys', '-t', PANE, ...keys)),
    type: async (text) => void (await call('send-keys', '-t', PANE, '-l', text)),
    enter: async (command) => {
      await call('send-keys', '-t', PANE, '-l', command)
      await call('send-keys', '-t', PANE, 'Enter')
    },
    screen,
    styledScreen: () => call('capture-pane', '-p', '-e', '-N', '-t', PANE),
    async shows(expected) {
      const deadline = performance.now() + patienceMs
      for (;;) {
        const text = await screen()
        if (expected.test(text)) return text
        if (performance.now() > deadline) throw new Error(`The terminal does not show ${expected}, but:\n${text}`)
        await sleep(30)
      }
    },
    async modes() {
      const format = '#{alternate_on}|#{cursor_flag}|#{wrap_flag}|#{pane_title}'
      const [alternate, cursor, wrap, title = ''] = (await show(format)).trimEnd().split('|')
      return { alternate: alternate === '1', cursor: cursor === '1', wrap: wrap === '1', title }
    },
    resize: async (width, height) =>
      void (await call('resize-window', '-t', PANE, '-x', `${width}`, '-y', `${height}`)),
    record: async (file) => void (await call('pipe-pane', '-t', PANE, `cat > '${file}'`)),
    hangUp: async () => void (await call('respawn-pane', '-k', '-t', PANE, SHELL)),
    close: async () => void (await call('kill-server').catch(() => '')),
  }
}

const PANE = 's:0.0'
const SHELL = "exec env PS1='$ ' bash --norc --noprofile"
