// Cleans up after the runner: see reaper.ts. Reads processes and folders from standard input, one JSON object per line.
// At the end of the input, it ends every process by its id and removes every folder.
import { readFileSync, rmSync } from 'node:fs'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'

const GRACE_MS = 2_000
const processes = new Map() // pid → { signal, startedAt }
const folders = new Set()

// An interrupt from the terminal is for the runner. This process outlives the runner on purpose.
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(signal, () => {})

for await (const line of createInterface({ input: process.stdin })) {
  const { watch, forget, signal } = JSON.parse(line)
  if (typeof watch === 'number') processes.set(watch, { signal, startedAt: startedAt(watch) })
  if (typeof watch === 'string') folders.add(watch)
  processes.delete(forget)
  folders.delete(forget)
}

for (const [pid, { signal }] of [...processes].filter(isStillTheSame)) {
  for (const each of tree(pid)) send(each, 'SIGCONT') // A paused server handles no signal but SIGKILL.
  send(pid, signal)
}
const graceEnds = Date.now() + GRACE_MS
while ([...processes].some(isStillTheSame) && Date.now() < graceEnds) await sleep(20)
for (const [pid] of [...processes].filter(isStillTheSame)) for (const each of tree(pid)) send(each, 'SIGKILL')
for (const folder of folders) rmSync(folder, { recursive: true, force: true, maxRetries: 5, retryDelay: 100 })
process.exit()

// The system can reuse a process id. The start time tells the two processes apart.
function isStillTheSame([pid, { startedAt: then }]) {
  const now = startedAt(pid)
  return now !== undefined && now === then
}

function startedAt(pid) {
  if (process.platform !== 'linux') return send(pid, 0) ? 'unknown' : undefined
  const fields = read(`/proc/${pid}/stat`)
    ?.replace(/^.*\) /s, '')
    .split(' ')
  return fields === undefined || fields[0] === 'Z' ? undefined : fields[19]
}

function tree(pid) {
  const children = (read(`/proc/${pid}/task/${pid}/children`) ?? '').split(' ').filter(Boolean)
  return [pid, ...children.flatMap((child) => tree(Number(child)))]
}

function send(pid, signal) {
  try {
    return process.kill(pid, signal)
  } catch {
    return false // Already gone.
  }
}

function read(path) {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return undefined
  }
}
