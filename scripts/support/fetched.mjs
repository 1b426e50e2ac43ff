// @ts-check
// Fetches what the matrix needs besides the development dependencies, once, into the user's cache.
import { chmodSync, existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { homedir } from 'node:os'
import { join } from 'node:path'
import { run } from './command.mjs'

const cache = join(process.env['XDG_CACHE_HOME'] || join(homedir(), '.cache'), 'holdfast', 'matrix')

/**
 * Installs npm packages into a folder of their own.
 *
 * @param {string} name
 * @param {string} what the packages, separated by spaces
 */
export function installed(name, what) {
  return once(name, what, async (folder) => {
    writeFileSync(join(folder, 'package.json'), '{ "private": true }\n')
    const { code, output } = await run('npm', ['install', '--no-audit', '--no-fund', ...what.split(' ')], {
      cwd: folder,
    })
    if (code !== 0) throw new Error(`npm could not install ${what}:\n${output}`)
  })
}

/**
 * @typedef {object} DebianServer
 * @property {string} suite of Debian. A backport needs the suite `below` it, too
 * @property {string} [below]
 * @property {string} package
 * @property {boolean} ownLibc the suite's C library is newer than this machine's, and is unpacked, too
 */

/**
 * Unpacks a server of another Debian release with its libraries, without installing it. Returns a folder for PATH in
 * which the server is named `redis-server`.
 *
 * @param {DebianServer} server
 */
export async function unpackedServer(server) {
  const { suite, package: name } = server
  const folder = await once(`${suite}-${name}`, JSON.stringify(server), (target) => unpack(server, target))
  return join(folder, 'bin')
}

/**
 * @param {DebianServer} server
 * @param {string} folder
 */
async function unpack({ suite, below, package: name, ownLibc }, folder) {
  for (const each of ['lists/partial', 'apt/archives/partial', 'root', 'bin']) {
    mkdirSync(join(folder, each), { recursive: true })
  }
  const [root, sources, status] = [join(folder, 'root'), join(folder, 'sources.list'), join(folder, 'status')]
  const suites = below === undefined ? [suite] : [suite, below]
  const keys = '/usr/share/keyrings/debian-archive-keyring.gpg'
  writeFileSync(sources, suites.map((each) => `deb [signed-by=${keys}] ${DEBIAN} ${each} main\n`).join(''))
  // An empty status, as if nothing were installed: then the plan names every library, and none of this machine is used.
  writeFileSync(status, '')
  const settings = {
    'Dir::Etc::sourcelist': sources,
    'Dir::Etc::sourceparts': '-',
    'Dir::State::lists': join(folder, 'lists'),
    'Dir::State::status': status,
    'Dir::Cache': join(folder, 'apt'),
    'APT::Default-Release': suite,
  }
  const options = ['-q', ...Object.entries(settings).flatMap(([key, value]) => ['-o', `${key}=${value}`])]
  await aptGet(['update', ...options], folder)
  const plan = await aptGet(['install', '--simulate', '--no-install-recommends', ...options, name], folder)
  const stem = name.replace(/-server$/, '')
  const needed = [...plan.matchAll(/^Inst (\S+)/gm)]
    .flatMap(([, each = '']) => each)
    .filter((each) => (/^(lib|lua-|zlib)/.test(each) && (ownLibc || each !== 'libc6')) || each.startsWith(stem))
  await aptGet(['download', ...options, ...needed], folder)
  for (const file of readdirSync(folder).filter((each) => each.endsWith('.deb'))) {
    const { code, output } = await run('dpkg', ['-x', join(folder, file), root])
    if (code !== 0) throw new Error(`dpkg could not unpack ${file}:\n${output}`)
    rmSync(join(folder, file))
  }
  for (const each of ['lists', 'apt']) rmSync(join(folder, each), { recursive: true, force: true })
  const script = join(folder, 'bin/redis-server')
  writeFileSync(script, starter(root, name, ownLibc))
  chmodSync(script, 0o755)
}

/**
 * A script that starts the server with its own libraries. A newer C library needs its own loader, too. The server acts
 * by the name of its program.
 *
 * @param {string} root
 * @param {string} name
 * @param {boolean} ownLibc
 */
function starter(root, name, ownLibc) {
  const isLibraries = (/** @type {string} */ each) => each.endsWith('-linux-gnu')
  const folders = ['lib', 'usr/lib'].flatMap((each) => {
    const folder = join(root, each)
    return existsSync(folder)
      ? readdirSync(folder)
          .filter(isLibraries)
          .map((inner) => join(folder, inner))
      : []
  })
  const program = join(root, 'usr/bin', name)
  // Debian's older servers load parts of Lua from a folder.
  const lua = folders.map((folder) => join(folder, 'lua/5.1/?.so')).join(';')
  if (!ownLibc) {
    return `#!/bin/sh\nLUA_CPATH="${lua};;" LD_LIBRARY_PATH="${folders.join(':')}" exec "${program}" "$@"\n`
  }
  const loaders = ['lib64', 'usr/lib64', 'lib', 'usr/lib'].flatMap((each) => {
    const folder = join(root, each)
    return existsSync(folder)
      ? readdirSync(folder).flatMap((file) => (/^ld-linux.*\.so\.\d$/.test(file) ? [join(folder, file)] : []))
      : []
  })
  const loader = loaders[0] ?? join(folders[0] ?? root, 'ld-linux-x86-64.so.2')
  return `#!/bin/sh\nexec "${loader}" --argv0 ${name} --library-path "${folders.join(':')}" "${program}" "$@"\n`
}

/**
 * @param {string[]} args
 * @param {string} cwd
 */
async function aptGet(args, cwd) {
  const env = { ...process.env, DEBIAN_FRONTEND: 'noninteractive', LC_ALL: 'C' }
  const { code, output, stdout } = await run('apt-get', args, { cwd, env })
  if (code !== 0) throw new Error(`apt-get ${args[0]} failed:\n${output}`)
  return stdout
}

/**
 * Fills a folder of the cache once. Fills it again if `what` has changed, or if the last attempt was interrupted.
 *
 * @param {string} name
 * @param {string} what
 * @param {(folder: string) => Promise<void>} fill
 */
async function once(name, what, fill) {
  const folder = join(cache, name)
  const mark = join(folder, 'installed.txt')
  if (existsSync(mark) && readFileSync(mark, 'utf8') === what) return folder
  process.stderr.write(`fetching ${what} into ${folder} …\n`)
  rmSync(folder, { recursive: true, force: true })
  mkdirSync(folder, { recursive: true })
  await fill(folder)
  writeFileSync(mark, what)
  return folder
}

const DEBIAN = 'http://deb.debian.org/debian'
