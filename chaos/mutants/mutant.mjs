// @ts-check
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { core } from './core.mjs'
import { redis } from './redis.mjs'
import { redlock } from './redlock.mjs'
import { sql } from './sql.mjs'
import { uses } from './uses.mjs'

/**
 * One change that makes the library unsafe.
 *
 * @typedef {object} Mutant
 * @property {string} name
 * @property {string} breaks what no longer holds
 * @property {string} file
 * @property {string} search must be in the file exactly once
 * @property {string} replace
 * @property {readonly string[]} checks the names of checks or files of tests that should notice it, the cheapest first
 */

/** @type {readonly Mutant[]} */
export const MUTANTS = [...core, ...uses, ...redis, ...redlock, ...sql]

/**
 * The file's text with the mutant. Throws if the mutant does not match exactly once, so that no mutant dies unnoticed
 * when the code changes.
 *
 * @param {Mutant} mutant
 * @param {string} root the folder of the repository or of a copy
 */
export function mutated({ name, file, search, replace }, root) {
  const text = readFileSync(join(root, file), 'utf8')
  const found = text.split(search).length - 1
  if (found !== 1) throw new Error(`the mutant ${name} matches ${found} times in ${file}, not once: ${search}`)
  return text.replace(search, () => replace)
}

/**
 * Applies a mutant to a copy of the repository. Returns a function that undoes it.
 *
 * @param {Mutant} mutant
 * @param {string} root
 */
export function apply(mutant, root) {
  const file = join(root, mutant.file)
  const before = readFileSync(file, 'utf8')
  writeFileSync(file, mutated(mutant, root))
  return () => writeFileSync(file, before)
}
