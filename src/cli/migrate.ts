import { parseArgs } from 'node:util'
import { checkOneOf } from '../core/arguments.ts'
import { migratePostgresUrl, migrationScript } from '../drivers/postgres.ts'
import { UsageError } from './exit-codes.ts'
import { FLAG, parsing, TEXT } from './store.ts'

/** Creates the tables in PostgreSQL, or brings them up to date. */
export async function main(args: readonly string[]): Promise<number> {
  const options = { url: TEXT, schema: TEXT, only: TEXT, print: FLAG }
  const { values } = parsing(() => parseArgs({ args: [...args], options }))
  const { url = process.env['HOLDFAST_URL'] ?? '', schema, only, print } = values
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
  process.stdout.write(ran ? 'created or updated the tables and functions\n' : 'nothing to do\n')
  return 0
}
