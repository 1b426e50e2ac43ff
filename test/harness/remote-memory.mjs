// The memory driver behind a TCP port, so that threads and processes can share one store in tests of the core.
// Plain JavaScript on dist/, because a worker thread on Node 20 runs no TypeScript.
import { createServer, connect as dial } from 'node:net'
import { createInterface } from 'node:readline'
import { parentPort, Worker } from 'node:worker_threads'
import { capabilities, createMemoryStore } from '../../dist/drivers/memory.js'
import { StoreError } from '../../dist/index.js'

/** Serves one store from its own thread, so that a blocked main thread does not stop it. */
export function serveInThread() {
  const worker = new Worker(new URL(import.meta.url), { argv: ['serve'] })
  return new Promise((resolve) => {
    worker.once('message', (port) => resolve({ port, stop: () => worker.terminate() }))
  })
}

if (process.argv.includes('serve') && parentPort !== null) {
  const store = createMemoryStore()
  const server = createServer((socket) => {
    socket.on('error', () => socket.destroy())
    createInterface({ input: socket }).on('line', (line) => {
      const { id, method, list } = JSON.parse(line)
      socket.write(`${JSON.stringify({ id, answers: list.map((each) => store[method](each)) })}\n`)
    })
  })
  server.listen(0, '127.0.0.1', () => parentPort.postMessage(server.address().port))
}

export async function openRemoteMemory(port) {
  const socket = dial(port, '127.0.0.1')
  await new Promise((resolve, reject) => socket.once('connect', resolve).once('error', reject))
  const calls = new Map()
  let lastId = 0
  createInterface({ input: socket }).on('line', (line) => {
    const { id, answers } = JSON.parse(line)
    calls.get(id)?.resolve(answers)
    calls.delete(id)
  })
  socket.on('close', () => {
    for (const { reject } of calls.values()) reject(new StoreError('the connection was closed'))
  })
  const ask = (method) => (list) =>
    new Promise((resolve, reject) => {
      lastId += 1
      calls.set(lastId, { resolve, reject })
      socket.write(`${JSON.stringify({ id: lastId, method, list })}\n`)
    })
  const inspect = ask('inspect')
  return {
    name: 'remote-memory',
    capabilities: { ...capabilities, scope: 'machine', wake: false, groups: false },
    extensions: { reopen: { module: import.meta.url, name: 'openRemoteMemory', args: [port] } },
    acquire: ask('acquire'),
    renew: ask('renew'),
    release: ask('release'),
    consume: ask('consume'),
    inspect: async (query) => (await inspect([query]))[0],
    close: async () => void socket.destroy(),
  }
}
