import {
  type Call,
  INSTANCES,
  LIMIT,
  ONCE_SECONDS,
  type Options,
  PERMITS,
  type Program,
  type Share,
  type Step,
  stepsOf,
} from './program.ts'

/** The program as TypeScript that a person can read. */
export function printed(program: Program): string {
  const { reacquire, latencyMs, tasks } = program
  const steps = stepsOf(program)
  const used = new Set(steps.filter(({ call }) => READS.has(call)).map(({ slot }) => slot))
  const instances = Array.from({ length: INSTANCES }, (_, on) => on).filter((on) =>
    steps.some((step) => step.on === on && !NO_INSTANCE.has(step.call)),
  )
  return [
    ...(latencyMs > 0 ? [`// each message to and from the store takes 0 to ${latencyMs} ms`] : []),
    ...(program.groups ? [] : ['// the driver has no groups']),
    ...instances.map((on) => {
      const option = reacquire[on] === 'extend' ? `{ driver, reacquire: 'extend' }` : '{ driver }'
      return `const lock${on + 1} = new DistributedLock(${option})`
    }),
    'await Promise.all([',
    ...tasks.flatMap((task) => ['  async () => {', ...lines(task, '    ', used), '  },']),
    '])',
  ].join('\n')
}

/** Calls that read a variable. */
const READS: ReadonlySet<Call> = new Set<Call>(['release', 'dispose', 'extend', 'serialize'])
const NO_INSTANCE: ReadonlySet<Call> = new Set<Call>([...READS, 'sleep', 'throw'])

function lines(steps: readonly Step[], indent: string, used: ReadonlySet<number>): string[] {
  return steps.flatMap((step) => stepLines(step, used).map((line) => `${indent}${line}`))
}

function stepLines(step: Step, used: ReadonlySet<number>): string[] {
  const { call, slot, names, awaited, body, seconds } = step
  const name = `'${names[0]}'`
  const lease = `lease${slot + 1}`
  const wait = awaited ? 'await' : 'void'
  const gets = used.has(slot) ? `${lease} = ` : ''
  const kept = `${awaited ? gets : ''}${wait} `
  const later = awaited || gets === '' ? '' : `.then((lease) => (${lease} = lease))`
  const lock = objectOf(step)
  const inner = lines(body, '  ', used)
  const parameter = used.has(slot) ? lease : watches(step)
  const end = (closing: string): string[] => [...inner, closing]
  switch (call) {
    case 'sleep':
      return [`await sleep(${ms(seconds)})`]
    case 'throw':
      return [`throw new Error('of the function')`]
    case 'acquire':
      return [`${kept}${lock}.${methods[step.share].acquire}(${name}${optionsText(step)})${later}${noted(step)}`]
    case 'hold':
      return [`${kept}${lock}.${methods[step.share].hold}(${name}${optionsText(step)})${later}${noted(step)}`]
    case 'using': {
      const open = awaited ? '{' : 'void (async () => {'
      const hold = `${lock}.${methods[step.share].hold}(${name}${optionsText(step)})`
      const held = `  await using ${lease} = await ${hold}${noted(step)}`
      return [open, held, ...end(awaited ? '}' : '})()')]
    }
    case 'with':
      return [
        `${wait} ${lock}.${methods[step.share].with}(${name}, async (${parameter}) => {`,
        ...end(`}${optionsText(step)})`),
      ]
    case 'withLocks': {
      const list = names.map((each) => `'${each}'`).join(', ')
      const leases = names.map((_, at) => `lease${((slot + at) % 3) + 1}`).join(', ')
      return [
        `${wait} ${lock}.withLocks([${list}], async ([${leases}]) => {${noted(step)}`,
        ...end(`}${optionsText(step)})`),
      ]
    }
    case 'release':
      return [`${wait} ${lease}.release()`]
    case 'dispose':
      return [`${wait} ${lease}[Symbol.asyncDispose]()`]
    case 'releaseName':
      return [`${wait} lock${step.on + 1}.release(${name})`]
    case 'extend':
      return [`${wait} ${lease}.extend(${seconds})`]
    case 'extendName':
      return [`${wait} lock${step.on + 1}.extend(${name}, ${seconds})`]
    case 'serialize':
      return [
        awaited ? `text = await ${lease}.serialize()` : `void ${lease}.serialize().then((written) => (text = written))`,
      ]
    case 'restore':
      return [`${kept}lock${step.on + 1}.restore(text${restoreText(step.options)})${later}${noted(step)}`]
    case 'forceRelease':
      return [`${wait} lock${step.on + 1}.forceRelease(${name}, { by: 'an operator' })`]
    case 'releaseAll':
      return [`${wait} lock${step.on + 1}.releaseAll()`]
    case 'close':
      return [`${wait} ${lock}.close({ drainSeconds: ${seconds} }) // a new instance takes its place`]
    case 'once':
      return [
        `${wait} once${step.on + 1}.once(${name}, async () => {${noted(step)}`,
        ...end(`}, { forSeconds: ${ONCE_SECONDS}${rest(step)} })`),
      ]
    case 'campaign':
      return [`${kept}election${step.on + 1}(${name}).campaign(${braces(rest(step, ''))})${later}${noted(step)}`]
    case 'lead':
      return [
        `${wait} election${step.on + 1}(${name}).run(async () => {${noted(step)}`,
        ...end(`}, { signal: abortAfter(${leadSeconds(step)}) })`),
      ]
    case 'consume':
      return [`${wait} limiter${step.on + 1}.consume(${name}) // ${LIMIT.limit} per ${LIMIT.periodSeconds} s`]
  }
}

/** The call alone, for messages. */
export function titleOf(step: Step): string {
  const [first = '', second = ''] = stepLines({ ...step, body: [] }, new Set())
  return (step.call === 'using' ? second : first)
    .replace(/^ *(?:await using \w+ = )?(?:await|void) /, '')
    .replace(/, async \(.*$/, ')')
    .replace(/ \/\/.*$/, '')
}

/** How long `run` of an election goes on. */
export const leadSeconds = ({ options }: Step): number => options.abortAfterSeconds || 0.5

const methods: Record<Share, { acquire: string; hold: string; with: string }> = {
  lock: { acquire: 'acquire', hold: 'hold', with: 'withLock' },
  read: { acquire: 'acquireRead', hold: 'holdRead', with: 'withRead' },
  write: { acquire: 'acquireWrite', hold: 'holdWrite', with: 'withWrite' },
  permits: { acquire: 'acquire', hold: 'hold', with: 'withPermits' },
}

function objectOf({ call, share, on }: Step): string {
  if (share === 'lock' || call === 'withLocks') return `lock${on + 1}`
  return share === 'permits' ? `semaphore${on + 1}of${PERMITS}` : `readWriteLock${on + 1}`
}

const watches = (step: Step): string => (step.watches === 'signal' ? '{ signal }' : 'lease')
const noted = (step: Step): string => (step.watches === 'signal' ? ' // watches its signal' : '')
const ms = (seconds: number): string => `${Math.round(seconds * 1_000)}`

function optionsText(step: Step): string {
  const text = rest(step, '')
  return text === '' ? '' : `, { ${text} }`
}

const braces = (text: string): string => (text === '' ? '' : `{ ${text} }`)

function rest({ options, share, call }: Step, before = ', '): string {
  const { abortAfterSeconds, permits, ...others } = options
  const isClaim = call !== 'once' && call !== 'campaign'
  const { timeoutSeconds, blockingTimeoutSeconds } = others
  const parts = Object.entries(isClaim ? others : { timeoutSeconds, blockingTimeoutSeconds })
    .filter(([, value]) => value !== 0 && value !== undefined)
    .map(([name, value]) => `${name}: ${value}`)
  if (abortAfterSeconds > 0) parts.push(`signal: abortAfter(${abortAfterSeconds})`)
  if (share === 'permits' && permits > 1 && isClaim) parts.push(`permits: ${permits}`)
  return parts.length === 0 ? '' : `${before}${parts.join(', ')}`
}

function restoreText({ timeoutSeconds, heartbeat }: Options): string {
  const parts = [
    ...(timeoutSeconds > 0 ? [`timeoutSeconds: ${timeoutSeconds}`] : []),
    ...(heartbeat === undefined ? [] : [`heartbeat: ${heartbeat}`]),
  ]
  return parts.length === 0 ? '' : `, { ${parts.join(', ')} }`
}
