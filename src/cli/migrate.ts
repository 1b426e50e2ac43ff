import { parseArgs } from 'node:util'
import { checkOneOf } from '../core/arguments.ts'
import { migratePostgresUrl, migrationScript } from '../drivers/postgres.ts'
import { UsageError } from './exit-codes.ts'
import { FLAG, parsing, TEXT } from './store.ts'

/** Creates the tables in PostgreSQL, or brings them up to date. */
export async function main(args: readonly string[]): Promise<number> {
  const { url, schema, only, print } = parsing(() => parse(args))
  const scope = only === undefined ? {} : { only: checkOneOf('--only', only, ['fence']) }
  if (print) {
    process.stdout.write(migrationScript(schema ?? 'public', scope))
    return 0
  }
  if (!/^postgres(?:ql)?:/i.test(url)) {
    throw new UsageError(
      'migrate works on PostgreSQL only: pass --url postgres://… or set HOLDFAST_URL. Other stores need no migration',
    )
  }
  const ran = await migratePostgresUrl(url, { ...scope, ...(schema !== undefined && { schema }) })
  process.stdout.write(ran.length === 0 ? 'nothing to do\n' : `ran ${ran.length} migrations: ${ran.join(', ')}\n`)
  return 0
}

interface Parsed {
  readonly url: string
  readonly schema: string | undefined
  readonly only: string | undefined
  readonly print: boolean
}

function parse(args: readonly string[]): Parsed {
  const { values } = parseArgs({
    args: [...args],
    options: { url: TEXT, schema: TEXT, only: TEXT, print: FLAG },
  })
  const { url = process.env['HOLDFAST_URL'] ?? '', schema, only, print = false } = values
  return { url, schema, only, print }
}
