// The client process of a soak. run-soak.ts starts it with the test harness, and calls its exported functions.
import { setTimeout as sleep } from 'node:timers/promises'
import { Draw } from '../draw.ts'
import { contend } from './contenders.ts'
import { keepLease } from './holders.ts'
import { type LoopDelay, type Memory, ProcessState, type Resources } from './process-state.ts'
import { Rests } from './rests.ts'
import { type Done, Tally } from './tally.ts'
import { visit, visitOnce } from './visitors.ts'
import { type ClientSettings, openWorld, type Task, type World } from './world.ts'

export interface ClientSample extends Memory, LoopDelay {
  resources: Resources
  done: Done
}

/** For every so many leases there is one task that contends with others. */
const LEASES_PER_CONTENDER = 100
const LEAST_CONTENDERS = 10
const VISITORS = 2
/** What a closed connection and an ended thread may take to vanish. */
const CLOSED_WITHIN_MS = 5_000

// Before the package under test is loaded.
const rests = new Rests()
const tally = new Tally()
const state = new ProcessState()
const shutdown = new AbortController()
// The first thread of a process opens these.
void [process.stdout, process.stderr]
process.on('warning', ({ stack, message }) => tally.unexpected(`a warning of Node: ${stack ?? message}`))

let world: World | undefined
let tasks: Promise<void>[] = []

/** Uses everything once and closes it, so that all code is loaded. Returns what there was before and afterwards. */
export async function warmUp(settings: ClientSettings): Promise<{ before: ClientSample; after: ClientSample }> {
  const before = await sample()
  const rehearsal = await openWorld({ settings, tally, rests })
  await visitOnce({
    world: rehearsal,
    draw: new Draw(`${settings.seed}/rehearsal`),
    number: 0,
    shutdown: shutdown.signal,
  })
  await close(rehearsal)
  await untilLike(before.resources)
  return { before, after: await sample() }
}

export async function start(settings: ClientSettings): Promise<void> {
  const opened = await openWorld({ settings, tally, rests })
  world = opened
  const task = (kind: string, number: number): Task => {
    return { world: opened, draw: new Draw(`${settings.seed}/${kind}/${number}`), number, shutdown: shutdown.signal }
  }
  const all = (kind: string, count: number, run: (task: Task) => Promise<void>): Promise<void>[] =>
    Array.from({ length: count }, (_, number) => run(task(kind, number)))
  const contenders = Math.max(LEAST_CONTENDERS, Math.round(settings.leases / LEASES_PER_CONTENDER))
  tasks = [
    ...all('holder', settings.leases, keepLease),
    ...all('contender', contenders, contend),
    ...all('visitor', VISITORS, visit),
  ]
}

export async function sample(): Promise<ClientSample> {
  const memory = await state.memory()
  return { ...memory, resources: resources(), done: tally.done }
}

/** Ends all tasks and closes everything. Waits for a moment until the process is like `before`. */
export async function stop(before: Resources): Promise<ClientSample> {
  rests.end()
  await Promise.all(tasks)
  tasks = []
  if (world !== undefined) await close(world)
  await untilLike(before)
  return sample()
}

function resources(): Resources {
  return state.resources(shutdown.signal, world?.application.listeners() ?? 0)
}

async function close({ close: closeInstances, application }: World): Promise<void> {
  await closeInstances()
  await application.close()
}

/** Some of it ends a little later than the call that closes it. */
async function untilLike(before: Resources): Promise<void> {
  const endMs = performance.now() + CLOSED_WITHIN_MS
  const isLike = (): boolean => JSON.stringify(resources()) === JSON.stringify(before)
  while (!isLike() && performance.now() < endMs) await sleep(100)
}
