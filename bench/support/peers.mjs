// @ts-check
import { existsSync, readFileSync } from 'node:fs'
import { root, run } from '../../scripts/support/command.mjs'

const FOLDER = `${root}bench`

/** Installs the packages of bench/package.json if one is missing. */
export async function installPeers() {
  const { dependencies } = JSON.parse(readFileSync(`${FOLDER}/package.json`, 'utf8'))
  if (Object.keys(dependencies).every((name) => existsSync(`${FOLDER}/node_modules/${name}`))) return
  process.stderr.write('installing the packages that Holdfast is compared with …\n')
  const { code, output } = await run('npm', ['ci', '--silent', '--no-progress'], { cwd: FOLDER })
  if (code !== 0) throw new Error(`cannot install the packages of bench/package.json:\n${output}`)
}
