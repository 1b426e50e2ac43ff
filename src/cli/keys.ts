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
