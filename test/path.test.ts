import { expect, test } from 'vitest'
import { root, run } from '../scripts/support/command.mjs'

test('npm run path counts what each call on a store executes', { timeout: 120_000 }, async () => {
  const { code, stdout, output } = await run(process.execPath, [`${root}scripts/path.mjs`, 'memory'])
  expect(code, output).toBe(0)
  const rows = [...stdout.matchAll(/^ {2}(\w.*?) +(\d+) \/ (\d+)$/gm)].map(([, call, files, functions]) => ({
    call,
    files: Number(files),
    functions: Number(functions),
  }))
  expect(rows.map(({ call }) => call)).toEqual([
    'free',
    'waits and is woken',
    'renewed once',
    'lost: gone from the store',
    'lost: expired',
  ])
  for (const { call, files, functions } of rows) {
    expect(files, call).toBeGreaterThan(10)
    expect(functions, call).toBeGreaterThan(files)
  }
  const [free, ...others] = rows.map(({ functions }) => functions)
  expect(Math.min(...others)).toBeGreaterThanOrEqual(free ?? 0)
})
