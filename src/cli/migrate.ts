import { parseArgs } from 'node:util'
import { migratePostgresUrl, migrationScript } from '../drivers/postgres.ts'
import { UsageError, usageErrorFrom } from './exit-codes.ts'

/** `holdfast migrate [--url postgres://…] [--schema name] [--print]`: creates the tables in PostgreSQL, or brings them up to date. */
export async function main(args: readonly string[]): Promise<number> {
  const { url, schema, print } = parse(args)
  if (print) {
    process.stdout.write(migrationScript(schema ?? 'public'))
    return 0
  }
  if (!/^postgres(?:ql)?:/.test(url)) {
    throw new UsageError(
      'migrate works on PostgreSQL: give --url postgres://… or set HOLDFAST_URL; other stores need none',
    )
  }
  const ran = await migratePostgresUrl(url, schema)
  process.stdout.write(ran.length === 0 ? 'nothing to do\n' : `ran ${ran.length} migrations: ${ran.join(', ')}\n`)
  return 0
}

function parse(args: readonly string[]): { url: string; schema: string | undefined; print: boolean } {
  try {
    const { values } = parseArgs({
      args: [...args],
      options: { url: { type: 'string' }, schema: { type: 'string' }, print: { type: 'boolean' } },
    })
    return { url: values.url ?? process.env['HOLDFAST_URL'] ?? '', schema: values.schema, print: values.print ?? false }
  } catch (error) {
    throw usageErrorFrom(error)
  }
}
