import { readFileSync } from 'node:fs'

/**
 * Reads a file of `protocol/`. Only code that runs from `src/` does: scripts/build.mjs replaces every call by the text,
 * so the published code opens no file and can be bundled. It finds the calls by their form,
 * `readProtocol('folder/file')`.
 */
export function readProtocol(path: string): string {
  return readFileSync(new URL(`../../../protocol/${path}`, import.meta.url), 'utf8')
}
