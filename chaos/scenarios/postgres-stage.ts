import { type ShiftedClock, shiftedClock } from '../../test/harness/clock-shim.ts'
import { until } from '../../test/harness/processes.ts'
import { type Server, startPostgres } from '../../test/harness/servers.ts'
import { askPostgres, type PostgresRow } from '../../test/harness/wire.ts'
import type { Spared } from '../checks/kept.ts'
import { DATABASE } from '../connect.ts'
import type { Fault, PostgresFault, Timeout } from '../faults.ts'
import { nowMs } from '../history.ts'
import { Links } from '../links.ts'
import type { LoadMeter } from '../load.ts'
import { Losses, SETTLE_MS } from '../losses.ts'
import { pause, type Setting, type Stage, type StageParts, Turns } from '../stage.ts'
import { gatherCrowd } from './crowd.ts'
import { putCopyBack, putDataBack } from './put-back.ts'
import { isAnswered, PATIENCE_MS } from './redis-node.ts'

/** The last statement of a connection that listens: to listen, to be kept alive, or to confirm a grant. */
const LISTENS = "query LIKE 'LISTEN%' OR query LIKE '%holdfast_key(%'"

const MOST_TRIES = 20
const TRY_AGAIN_MS = 50

/** One server, and the faults that can be injected into it. */
export class PostgresStage implements Stage {
  readonly links: Links
  readonly spared: Spared[] = []
  readonly #losses = new Losses()
  readonly #dist: string
  readonly #server: Server
  readonly #clock: ShiftedClock
  readonly #meter: LoadMeter
  readonly #losesWithSession: boolean
  /** Faults of the whole server are serial. */
  readonly #turns = new Turns()

  private constructor(
    parts: { server: Server; clock: ShiftedClock; links: Links; meter: LoadMeter; dist: string },
    losesWithSession: boolean,
  ) {
    this.#dist = parts.dist
    this.#server = parts.server
    this.#clock = parts.clock
    this.links = parts.links
    this.#meter = parts.meter
    this.#losesWithSession = losesWithSession
  }

  /** With `losesWithSession`, the end of a session is the end of its leases. */
  static async open(
    { clients }: Setting,
    { meter, dist }: StageParts,
    { losesWithSession }: { losesWithSession: boolean },
  ): Promise<PostgresStage> {
    const clock = await shiftedClock()
    const server = await startPostgres({ clock })
    await askPostgres({ port: server.port, timeoutMs: PATIENCE_MS }, `CREATE DATABASE ${DATABASE}`)
    const links = await Links.open(clients.length, [server.port])
    return new PostgresStage({ server, clock, links, meter, dist }, losesWithSession)
  }

  get losses() {
    return this.#losses.all
  }

  get url() {
    return `postgres://postgres@127.0.0.1:${this.#server.port}/${DATABASE}`
  }

  async apply(fault: Fault, signal: AbortSignal): Promise<boolean> {
    switch (fault.kind) {
      case 'server-stalled':
        return this.#turns.take(signal, async () => {
          await this.#server.pause()
          await pause(fault.forMs, signal)
          this.#server.resume()
          return true
        })
      case 'server-killed':
      case 'immediate-shutdown':
        return this.#turns.take(signal, () => this.#endingSessions(() => this.#restart(fault, signal)))
      case 'connections-killed':
        return this.#endingSessions(() => this.#terminate("backend_type = 'client backend'"))
      case 'listeners-killed':
        return this.#terminate(LISTENS)
      case 'timeout-shortened':
        return fault.setting === 'idle_session_timeout'
          ? this.#endingSessions(() => this.#shorten(fault, signal))
          : this.#shorten(fault, signal)
      case 'server-clock-stepped':
        return this.#turns.take(signal, () =>
          this.#losses.steppingClock(fault.byMs, {
            shift: async (toMs) => {
              this.#clock.shift(toMs)
              // A statement that has begun may still see the old time.
              await pause(50, signal)
            },
            meanwhile: () => pause(fault.forMs, signal),
            // A session lock has no end that a clock could reach.
            endsLeases: !this.#losesWithSession,
          }),
        )
      case 'table-truncated':
        return this.#losses.alone(SETTLE_MS, () =>
          this.#losses.losing({}, () => this.#isDone('TRUNCATE distributed_locks')),
        )
      case 'database-put-back':
        return this.#turns.take(signal, () => this.#losses.alone(SETTLE_MS, () => this.#putBack(fault, signal)))
      case 'old-statistics':
        return this.#turns.take(signal, () => this.#gatherCrowd(fault, signal))
      case 'row-locked':
        return this.#lockRow(fault, signal)
      case 'table-locked':
        return this.#isDone(
          `BEGIN; LOCK TABLE distributed_locks IN ACCESS EXCLUSIVE MODE;
           SELECT pg_sleep(${fault.forMs / 1_000}); COMMIT`,
        )
      default:
        throw new Error(`PostgreSQL has no fault ${fault.kind}`)
    }
  }

  async version(): Promise<string> {
    return `postgres ${(await this.#ask('SHOW server_version'))[0]?.[0]}`
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#meter.add('servers', this.#server.pid)
    await this.links[Symbol.asyncDispose]()
    await this.#server[Symbol.asyncDispose]()
    this.#clock[Symbol.dispose]()
  }

  async #restart(fault: { kind: 'server-killed' | 'immediate-shutdown'; downMs: number }, signal: AbortSignal) {
    this.#meter.add('servers', this.#server.pid)
    if (fault.kind === 'server-killed') await this.#server.kill()
    else process.kill(this.#server.pid, 'SIGQUIT')
    await pause(fault.downMs, signal)
    await this.#server.restart()
    return true
  }

  async #shorten(
    { setting, toMs, forMs }: { setting: Timeout; toMs: number; forMs: number },
    signal: AbortSignal,
  ): Promise<boolean> {
    const set = async (change: string): Promise<boolean> =>
      (await this.#isDone(`ALTER SYSTEM ${change}`)) && this.#isDone('SELECT pg_reload_conf()')
    if (!(await set(`SET ${setting} = '${toMs}ms'`))) return false
    await pause(forMs, signal)
    // The server may be down or stalled, and the timeout ends this statement, too.
    await until(() => set(`RESET ${setting}`), {
      timeoutMs: PATIENCE_MS,
      failure: () => `cannot restore ${setting}`,
    })
    return true
  }

  #putBack({ from, lagMs }: PostgresFault & { kind: 'database-put-back' }, signal: AbortSignal): Promise<boolean> {
    const put = from === 'template' ? putCopyBack : putDataBack
    const losing: Parameters<typeof put>[0]['losing'] = (lost, work) => this.#losses.losing(lost, work)
    return put({ port: this.#server.port, lagMs, signal, losing })
  }

  async #gatherCrowd(fault: PostgresFault & { kind: 'old-statistics' }, signal: AbortSignal): Promise<boolean> {
    const fromMs = nowMs()
    const wrong = await gatherCrowd({ ...fault, dist: this.#dist, url: this.url, signal })
    this.spared.push({ fault, fromMs, toMs: nowMs(), answers: true, wrong })
    return true
  }

  /** False if there is no such session. */
  #terminate(which: string): Promise<boolean> {
    const sql = `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND (${which})`
    return this.#ask(sql).then(
      (ended) => ended.length > 0,
      () => false,
    )
  }

  /** The row exists only while the lock is held or waited for. False if it does not within a second. */
  async #lockRow({ lockName, forMs }: { lockName: string; forMs: number }, signal: AbortSignal): Promise<boolean> {
    const sleep = `pg_sleep(${forMs / 1_000})`
    const row = `SELECT 1 FROM distributed_locks WHERE lock_name = '${lockName}' FOR UPDATE`
    const sql = `SELECT ${sleep} FROM (${row}) AS locked`
    for (let tries = 0; tries < MOST_TRIES && !signal.aborted; tries += 1) {
      // Migrations may not have made the table yet.
      const locked = await this.#ask(sql).catch(() => [])
      if (locked.length > 0) return true
      await pause(TRY_AGAIN_MS, signal)
    }
    return false
  }

  #endingSessions(work: () => Promise<boolean>): Promise<boolean> {
    return this.#losesWithSession ? this.#losses.losing({}, work) : work()
  }

  /** For a statement that may fail, because of another fault. */
  #isDone(sql: string): Promise<boolean> {
    return isAnswered(this.#ask(sql))
  }

  #ask(sql: string): Promise<PostgresRow[]> {
    return askPostgres({ port: this.#server.port, database: DATABASE, timeoutMs: PATIENCE_MS }, sql)
  }
}
