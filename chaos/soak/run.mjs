// @ts-check
// Keeps thousands of leases coming and going, and looks for what is left of them: see README.md.
//
//   node chaos/soak/run.mjs --driver redis --minutes 30 --leases 10000 --seed 1
import { runCompiled } from '../compiled.mjs'

await runCompiled('chaos/soak/tsconfig.json', 'chaos/soak/main.js')
