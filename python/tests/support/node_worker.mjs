// Runs in a Node process that a Python test has started: see node_worker.py. Reads calls from stdin, one JSON text per
// line, and answers them on file descriptor 3, so that the program may print.
import { writeSync } from 'node:fs'
import { createInterface } from 'node:readline'

let functions
const calls = []

globalThis.expose = (exposed) => {
  functions = exposed
  for (const call of calls.splice(0)) answer(call)
}

createInterface({ input: process.stdin })
  .on('line', (line) => {
    const call = JSON.parse(line)
    if (functions === undefined) calls.push(call)
    else answer(call)
  })
  // The test has ended. Leases that are still held expire, as after any crash.
  .on('close', () => process.exit())

async function answer({ id, name, args }) {
  const reply = await resultOf(name, args)
  writeSync(3, `${JSON.stringify({ id, ...reply })}\n`)
}

async function resultOf(name, args) {
  try {
    if (name === 'holdfast:ready') return { result: null }
    if (typeof functions[name] !== 'function') throw new TypeError(`the worker exposes no function ${name}`)
    return { result: (await functions[name](...args)) ?? null }
  } catch (error) {
    const { name: kind, message, code } = error instanceof Error ? error : new Error(String(error))
    return { error: { name: kind, message, code } }
  }
}
