/** Splits a SQL file into its statements. Each has a line `-- name: …` above it. */
export function namedStatements<Name extends string>(sql: string): Readonly<Record<Name, string>> {
  const statements = sql
    .split(/^-- name: /m)
    .slice(1)
    .map((part) => [part.slice(0, part.indexOf('\n')).trim(), part.slice(part.indexOf('\n')).trim()])
  return Object.fromEntries(statements) as Record<Name, string>
}
