/** The whole terminal, for a live view. */
export interface Screen {
  readonly columns: number
  readonly rows: number
  /** Replaces what is shown: a line for each row. None is wider than the terminal, or has text that it would act on. */
  draw(lines: readonly string[]): void
  /** Gives the terminal back as it was. */
  close(): void
}

export interface ScreenEvents {
  pressed(key: Key): void
  /** The size has changed, or the terminal shows something else: draw again. */
  changed(): void
  /** A signal ends the program. `SIGHUP` also if the terminal is gone. */
  ended(signal: NodeJS.Signals): void
}

/**
 * Takes the terminal: another screen, no cursor, and keys without the Enter key. It is given back on every way out:
 * when the screen is closed, on exit (which Node announces before it reports an error), and while the program is
 * suspended. Only `kill -9` leaves it behind.
 */
export function openScreen({ pressed, changed, ended }: ScreenEvents): Screen {
  const { stdin, stdout } = process
  let isOpen = false
  let resuming: NodeJS.Timeout | undefined

  function open(): void {
    // First: in the background this stops the program, and it must not have written to the terminal then. Off and on,
    // because a shell may have changed the mode meanwhile, and Node does not set a mode that it thinks is set.
    stdin.setRawMode(false).setRawMode(true)
    stdout.write(ENTER)
    isOpen = true
  }
  function leave(): void {
    if (!isOpen) return
    isOpen = false
    stdout.write(LEAVE)
    stdin.setRawMode(false)
  }
  function suspend(): void {
    leave()
    // Without a listener the signal stops all processes of the job, as Ctrl-Z does in another program.
    process.off('SIGTSTP', suspend)
    process.kill(0, 'SIGTSTP')
    // It does not stop a process that no shell could continue. That one goes on.
    resuming = setTimeout(resume, RESUME_MS)
  }
  function resume(): void {
    clearTimeout(resuming)
    process.off('SIGTSTP', suspend).on('SIGTSTP', suspend)
    open()
    changed()
  }
  const gone = (): void => ended('SIGHUP')
  const receive = (input: string): void => {
    for (const key of keysIn(input)) {
      if (key === 'ctrl-z') suspend()
      else if (key === 'ctrl-l') resume()
      else pressed(key)
    }
  }

  stdin.setEncoding('utf8').on('data', receive).on('end', gone).on('error', gone)
  stdout.on('error', gone).on('resize', changed)
  process.on('SIGTSTP', suspend).on('SIGCONT', resume).on('exit', leave)
  for (const signal of ENDING) process.on(signal, ended)
  open()

  return {
    get columns() {
      return stdout.columns || 80
    },
    get rows() {
      return stdout.rows || 24
    },
    draw(lines) {
      // Line by line, it does not flicker. Cleared first: at the end of a full line, that would clear its last column.
      if (isOpen) stdout.write(HOME + lines.map((line) => `${CLEAR_LINE}${line}`).join('\r\n'))
    },
    close() {
      clearTimeout(resuming)
      leave()
      stdin.off('data', receive).off('end', gone).off('error', gone).pause()
      stdout.off('resize', changed)
      process.off('SIGTSTP', suspend).off('SIGCONT', resume).off('exit', leave)
      for (const signal of ENDING) process.off(signal, ended)
    },
  }
}

const ENDING: readonly NodeJS.Signals[] = ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGQUIT']

/** The other screen, empty, without a cursor, and with lines that are cut instead of wrapped. */
const ENTER = '\u001b[?1049h\u001b[2J\u001b[?25l\u001b[?7l'
const LEAVE = '\u001b[0m\u001b[?7h\u001b[?25h\u001b[?1049l'
const HOME = '\u001b[H'
const CLEAR_LINE = '\u001b[0m\u001b[K'
/** Long enough for the signal to arrive, and short enough not to be noticed. */
const RESUME_MS = 50

/** A key: a character, or one of these names. */
export type Key = string

/**
 * The keys in what a terminal has sent. An escape sequence that is not known is left out, so that its characters do not
 * count as keys.
 */
export function keysIn(input: string): Key[] {
  return [...input.matchAll(SEQUENCE)].flatMap(([text]) => NAMES[text] ?? (isCharacter(text) ? text : []))
}

/** An escape sequence, or one character. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: terminals send them
const SEQUENCE = /\u001b(?:\[[0-?]*[ -/]*[@-~]|O[ -~])|./gsu

const isCharacter = (text: string): boolean => /^[^\p{Cc}]$/u.test(text)

const NAMES: Readonly<Record<string, Key>> = {
  '\u0003': 'ctrl-c',
  '\u000c': 'ctrl-l',
  '\u001a': 'ctrl-z',
  '\r': 'enter',
  '\n': 'enter',
  '\u001b': 'escape',
  '\u007f': 'backspace',
  '\b': 'backspace',
  '\u001b[A': 'up',
  '\u001bOA': 'up',
  '\u001b[B': 'down',
  '\u001bOB': 'down',
  '\u001b[5~': 'pageup',
  '\u001b[6~': 'pagedown',
  '\u001b[H': 'home',
  '\u001bOH': 'home',
  '\u001b[1~': 'home',
  '\u001b[F': 'end',
  '\u001bOF': 'end',
  '\u001b[4~': 'end',
}
