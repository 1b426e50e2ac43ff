// @ts-check
// Explores the messages of scripted scenes: see README.md.
//
//   node chaos/wire/run.mjs --store redis --scene acquire,hand-off
import { runCompiled } from '../compiled.mjs'

await runCompiled('chaos/wire/tsconfig.json', 'chaos/wire/main.js')
