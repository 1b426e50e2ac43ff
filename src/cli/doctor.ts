import { chooseUrl } from '../connect.ts'
import { withoutSecrets } from '../core/secrets.ts'
import type { Finding } from '../doctor/finding.ts'
import { exitCodes, UsageError } from './exit-codes.ts'
import { argumentsOf, FLAG } from './store.ts'
import { paintFor, printable, printableJson } from './text.ts'

/** Examines a store, and reports what is wrong. Silent if nothing is. */
export async function main(args: readonly string[]): Promise<number> {
  const { values, positionals } = argumentsOf(args, { json: FLAG })
  if (positionals.length > 0) throw new UsageError('doctor takes no name: pass the store with --url')
  const url = chooseUrl(values.url)
  const { examine } = await import('../doctor/doctor.ts')
  const findings = await examine(url)
  for (const finding of findings) process.stdout.write(values.json ? `${printableJson(finding)}\n` : text(finding))
  if (findings.some(({ severity }) => severity === 'error')) return exitCodes.broken
  return findings.length > 0 ? exitCodes.doubtful : 0
}

function text({ code, severity, where, what, why, fix }: Finding): string {
  const place = where === undefined ? '' : ` (${where})`
  const lines = [`${severity} ${code}${place}`, `  ${what}`, `  ${why}`, `  Do this: ${fix}`, '']
  const [head = '', ...rest] = lines.map((line) => printable(withoutSecrets(line)))
  return `${[paintFor(process.stdout)(severity === 'error' ? 'red' : 'yellow', head), ...rest].join('\n')}\n`
}
