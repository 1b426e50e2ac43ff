// Runs in a Node process that a Python test has started: see node_process.py. Reads calls from stdin, one JSON text per
// line, and answers them on the file descriptor that it was given, so that the program may print.
import { writeSync } from 'node:fs'
import { createInterface } from 'node:readline'

const answers = Number(process.argv[2])
let functions
let loaded = 0

globalThis.expose = (exposed) => {
  functions = exposed
}

createInterface({ input: process.stdin })
  .on('line', (line) => answer(JSON.parse(line)))
  // The test has ended. Leases that are still held expire, as after any crash.
  .on('close', () => process.exit())

async function answer({ id, name, args }) {
  const reply = await resultOf(name, args)
  writeSync(answers, `${JSON.stringify({ id, ...reply })}\n`)
}

async function resultOf(name, args) {
  try {
    if (name === 'holdfast:load') return { result: await load(...args) }
    if (name === 'holdfast:close') return { result: await close() }
    if (typeof functions[name] !== 'function') throw new TypeError(`the worker exposes no function ${name}`)
    return { result: (await functions[name](...args)) ?? null }
  } catch (error) {
    const { name: kind, message, code } = error instanceof Error ? error : new Error(String(error))
    return { error: { name: kind, message, code } }
  }
}

async function load(source) {
  // A module without a file finds no packages. Those that it imports are found from here, where `holdfast` is the built
  // package. The number makes it another module than that of an earlier test.
  const resolved = source.replaceAll(
    /(\bfrom\s+)'([^']+)'/g,
    (_, from, name) => `${from}'${import.meta.resolve(name)}'`,
  )
  loaded += 1
  await import(`data:text/javascript,${encodeURIComponent(`${resolved}\n// ${loaded}`)}`)
  return null
}

/** Whether the program has closed what it had opened. */
async function close() {
  const exposed = functions
  functions = undefined
  await exposed?.close?.()
  return exposed?.close !== undefined
}
