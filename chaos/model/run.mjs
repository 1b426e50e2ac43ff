// @ts-check
// Runs the model of Redlock's ballots: see README.md.
//
//   node chaos/model/run.mjs
//
// Node 20 does not run TypeScript, so tsc first compiles this folder and the parts of the library that it uses.
import { rmSync } from 'node:fs'
import { pathToFileURL } from 'node:url'
import { root, tsc } from '../../scripts/support/command.mjs'

const folder = `${root}.cache/model-${process.pid}`
process.on('exit', () => rmSync(folder, { recursive: true, force: true }))
const { code, output } = await tsc(['-p', 'chaos/model/tsconfig.json', '--outDir', folder])
process.stdout.write(output)
if (code !== 0) process.exit(2)

const { main } = await import(pathToFileURL(`${folder}/chaos/model/main.js`).href)
process.exit(main(process.argv.slice(2)))
