import { randomBytes } from 'node:crypto'
import pg from 'pg'
import { afterAll, beforeAll, describe, expect, inject, test } from 'vitest'
import { createStore, SLOW, type Store } from '../harness/cli.ts'

const url = inject('servers').postgres ?? ''
const done = 'created or updated the tables and functions\n'

let store: Store
let pool: pg.Pool
beforeAll(() => {
  store = createStore()
  pool = new pg.Pool({ connectionString: url, max: 4 })
})
afterAll(async () => {
  await pool.end()
  await store[Symbol.asyncDispose]()
})

describe.concurrent('holdfast migrate', SLOW, () => {
  test('creates the tables in the given schema, and has nothing to do the second time', async () => {
    const schema = unique()
    const migrate = () => store.run(['migrate', '--url', url, '--schema', schema])
    expect(await migrate()).toEqual({ code: 0, stdout: done, stderr: '' })
    expect(await migrate()).toEqual({ code: 0, stdout: 'nothing to do\n', stderr: '' })
    expect(await acquires(schema)).toBe(true)
  })

  test('takes the database from HOLDFAST_URL, and the schema from its parameter', async () => {
    const schema = unique()
    const env = { HOLDFAST_URL: `${url}?holdfast_schema=${schema}` }
    expect(await store.run(['migrate'], env)).toMatchObject({ code: 0, stderr: '' })
    expect(await acquires(schema)).toBe(true)
  })

  test('of 6 runs at once, one creates the schema and the others have nothing to do', async () => {
    const schema = unique()
    const args = ['migrate', '--url', url, '--schema', schema]
    const runs = await Promise.all(Array.from({ length: 6 }, () => store.run(args)))
    expect(runs.filter(({ code, stderr }) => code !== 0 || stderr !== '')).toEqual([])
    expect(runs.filter(({ stdout }) => stdout !== 'nothing to do\n')).toHaveLength(1)
    expect(await acquires(schema)).toBe(true)
  })

  test('--print needs no database, and prints SQL that does the same and can be run again', async () => {
    const schema = `Odd "name" ${unique()}`
    const { code, stdout, stderr } = await store.run(['migrate', '--print', '--schema', schema], { HOLDFAST_URL: '' })
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' })
    for (const _ of [1, 2]) await pool.query(stdout)
    expect(await acquires(schema)).toBe(true)
    const again = await store.run(['migrate', '--url', url, '--schema', schema])
    expect(again).toEqual({ code: 0, stdout: 'nothing to do\n', stderr: '' })
  })

  test('--only fence creates the fencing guard and no locks, directly and with --print', async () => {
    const [schema, printed] = [unique(), unique()]
    const run = await store.run(['migrate', '--url', url, '--schema', schema, '--only', 'fence'])
    expect(run).toEqual({ code: 0, stdout: done, stderr: '' })
    const { stdout } = await store.run(['migrate', '--print', '--schema', printed, '--only', 'fence'])
    await pool.query(stdout)
    for (const each of [schema, printed]) {
      await pool.query(`SELECT ${each}.holdfast_fence('a', 1)`)
      await expect(acquires(each)).rejects.toThrow(/acquire_lock/)
    }
    expect(await store.run(['migrate', '--only', 'locks'])).toMatchObject({
      code: 64,
      stderr: expect.stringMatching(/--only must be one of 'fence'/),
    })
  })

  test('without the right to create tables, the error says which command another role must run', async () => {
    const [schema, role] = [unique(), unique()]
    await pool.query(`CREATE ROLE ${role} LOGIN; CREATE SCHEMA ${schema}; GRANT USAGE ON SCHEMA ${schema} TO ${role}`)
    const theirs = url.replace('postgres@', `${role}@`)
    const { code, stdout, stderr } = await store.run(['migrate', '--url', theirs, '--schema', schema])
    expect({ code, stdout }).toEqual({ code: 69, stdout: '' })
    expect(stderr).toMatch(/this role may not create them: run "holdfast migrate --schema s_/)
    expect(stderr).toMatch(/or the SQL of "holdfast migrate --print"/)
    // After a role with that right has run the command, there is nothing left to do.
    await store.run(['migrate', '--url', url, '--schema', schema])
    await pool.query(`GRANT SELECT ON ALL TABLES IN SCHEMA ${schema} TO ${role}`)
    expect(await store.run(['migrate', '--url', theirs, '--schema', schema])).toMatchObject({
      code: 0,
      stdout: 'nothing to do\n',
    })
  })

  test('an unreachable database, a store without tables and an unknown option are different errors', async () => {
    const away = await store.run(['migrate', '--url', 'postgres://postgres@127.0.0.1:1/postgres'])
    expect(away).toMatchObject({
      code: 69,
      stdout: '',
      stderr: expect.stringMatching(
        /^holdfast: PostgreSQL at postgres:\/\/127.0.0.1:1\/postgres could not be reached: connection refused. Is/,
      ),
    })
    const other = await store.run(['migrate', '--url', 'memory:'])
    expect(other).toMatchObject({ code: 64, stdout: '', stderr: expect.stringMatching(/migrate works on PostgreSQL/) })
    const unknown = await store.run(['migrate', '--frobnicate'])
    expect(unknown).toMatchObject({ code: 64, stderr: expect.stringMatching(/--frobnicate/) })
  })
})

const unique = (): string => `s_${randomBytes(6).toString('hex')}`

async function acquires(schema: string): Promise<boolean> {
  const name = `"${schema.replaceAll('"', '""')}"`
  return (await pool.query(`SELECT ${name}.acquire_lock('a', 'b') AS got`)).rows[0].got
}
