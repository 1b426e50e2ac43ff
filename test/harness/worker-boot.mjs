// Loaded into a worker process before its program: see worker.ts. Answers the test's calls over the IPC channel.
let functions
const waitingForFunctions = []

globalThis.expose = (exposed) => {
  functions = exposed
  for (const message of waitingForFunctions.splice(0)) answer(message)
}

process.on('message', (message) => {
  if (functions === undefined) waitingForFunctions.push(message)
  else answer(message)
})
// The test has ended. Leases that are still held expire, as after any crash.
process.on('disconnect', () => process.exit())

async function answer({ id, name, args }) {
  try {
    if (name === 'holdfast:ready') return process.send({ id })
    if (typeof functions[name] !== 'function') throw new TypeError(`the worker exposes no function ${name}`)
    process.send({ id, result: await functions[name](...args) })
  } catch (error) {
    const { name, message, code } = error instanceof Error ? error : new Error(String(error))
    process.send({ id, error: { name, message, code } })
  }
}
