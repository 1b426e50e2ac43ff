/** Splits a SQL file into its statements. Each has a line `-- name: …` above it. */
export function namedStatements<Name extends string>(sql: string): Readonly<Record<Name, string>> {
  // Other comments would be sent with every call.
  const parts = sql.replaceAll(/^--(?! name: ).*\n/gm, '').split(/^-- name: /m)
  const statements = parts.slice(1).map((part) => /^(\S+)\s+(.*)$/s.exec(part.trim())?.slice(1))
  return Object.fromEntries(statements as [Name, string][]) as Record<Name, string>
}
