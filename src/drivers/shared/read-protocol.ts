import { readFileSync } from 'node:fs'

/**
 * A file of `protocol/`. Only code that runs from `src/` reads it: scripts/build.mjs puts the text in place of every
 * call, so what is published opens no file and can be bundled. It finds the calls by their form,
 * `readProtocol('folder/file')`.
 */
export function readProtocol(path: string): string {
  return readFileSync(new URL(`../../../protocol/${path}`, import.meta.url), 'utf8')
}
