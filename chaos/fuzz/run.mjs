// @ts-check
// Feeds odd input to the library: see README.md.
//
//   node chaos/fuzz/run.mjs --target replies --seconds 60 --seed 7
import { runCompiled } from '../compiled.mjs'

await runCompiled('chaos/fuzz/tsconfig.json', 'chaos/fuzz/main.js')
