// @ts-check
// The process of one contestant. It runs the calls of run.mjs.
/** @import { Contestant, OpenOptions } from './types.d.ts' */

/**
 * @typedef {{ id: number, open: OpenOptions & { module: string, scenario: string, prefix: string } }} Open
 * @typedef {{ id: number, call: string, args: unknown }} Call
 * @typedef {(contestant: Contestant, args: unknown, prefix: string) => Promise<unknown>} Work
 */

/** @type {Contestant | undefined} */
let contestant
/** @type {Record<string, Work>} */
let work = {}
let prefix = ''

process.on('message', async (/** @type {Open | Call} */ message) => {
  try {
    process.send?.({ id: message.id, value: await ('open' in message ? open(message) : call(message)) })
  } catch (error) {
    process.send?.({ id: message.id, error: error instanceof Error ? error.stack : String(error) })
  }
})
// A worker never outlives the run.
process.on('disconnect', () => process.exit())

/** @param {Open} message */
async function open({ open: { module, scenario, ...options } }) {
  ;({ work } = await import(`./scenarios/${scenario}.mjs`))
  prefix = options.prefix
  const { open } = await import(`./contestants/${module}.mjs`)
  contestant = await open(options)
}

/** @param {Call} message */
async function call({ call: name, args }) {
  if (name === 'cpu') return cpu()
  const run = work[name]
  if (contestant === undefined || run === undefined) throw new Error(`there is no ${name}`)
  return run(contestant, args, prefix)
}

function cpu() {
  const { user, system } = process.cpuUsage()
  return { micros: user + system }
}
