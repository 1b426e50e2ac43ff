import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { describe, expect, test } from 'vitest'
import { commandOptions } from '../../src/cli/completion.ts'
import { helpFor } from '../../src/cli/help.ts'
import { createStore, SLOW } from '../harness/cli.ts'

const run = promisify(execFile)

test.each(Object.entries(commandOptions))('the completion of %s knows the options of its help', (command, options) => {
  const inHelp = new Set(helpFor(command).match(/(?<=^ +(?:-\w, )?)--[a-z-]+/gm))
  expect([...options].sort()).toEqual([...inHelp].sort())
})

test('no line of the help is longer than 80 columns', () => {
  const texts = [helpFor(undefined), ...Object.keys(commandOptions).map(helpFor)]
  expect(texts.flatMap((text) => text.split('\n')).filter((line) => line.length > 80)).toEqual([])
})

test('the completion knows every command of the help', () => {
  const inHelp = new Set(helpFor(undefined).match(/(?<=^ {2}holdfast )[a-z][a-z-]*/gm))
  expect([...Object.keys(commandOptions), 'help'].sort()).toEqual([...inHelp].sort())
})

describe('holdfast completion', SLOW, () => {
  test('completes commands, options and names in bash', async () => {
    await using store = createStore()
    const { stdout: script } = await store.run(['completion', 'bash'])
    const complete = async (...words: string[]) => {
      const line = words.map((word) => `'${word}'`).join(' ')
      const program = `holdfast() { echo '{"state":"holds","lockName":"order:1"}'; }
        ${script}
        COMP_WORDS=(${line}); COMP_LINE='${words.join(' ')}'; COMP_POINT=\${#COMP_LINE}
        _holdfast; echo "\${COMPREPLY[@]}"`
      return (await run('bash', ['-c', program])).stdout.trim()
    }
    expect(await complete('holdfast', 'sh')).toBe('show')
    expect(await complete('holdfast', 'ls', '--wi')).toBe('--wide')
    expect(await complete('holdfast', 'to')).toBe('top')
    expect(await complete('holdfast', 'top', '--sort', 'lo')).toBe('longest')
    expect(await complete('holdfast', 'show', 'ord')).toBe('order:1')
    // Readline keeps what is before the colon.
    expect(await complete('holdfast', 'show', 'order:')).toBe('1')
    expect(await complete('holdfast', 'run', 'job', '--', 'bas')).toMatch(/\bbash\b/)
    expect(await complete('holdfast', 'run', 'job', '--', 'cat', '--')).toBe('')
  })

  test('prints a script for zsh and fish', async () => {
    await using store = createStore()
    expect((await store.run(['completion', 'zsh'])).stdout).toMatch(/^#compdef holdfast\n/)
    expect((await store.run(['completion', 'fish'])).stdout).toContain('__holdfast_in top')
  })
})
