// @ts-check
// Runs one of the programs of this folder, on real servers and in a real browser:
//
//   npm run screenshots           takes the pictures of docs/images/dashboard
//   npm run dashboard-figures     measures 10,000 locks with 1,000 changes per second
import { runCompiled } from '../../chaos/compiled.mjs'

const [name = ''] = process.argv.splice(2, 1)
await runCompiled('scripts/dashboard/tsconfig.json', `scripts/dashboard/${name}.js`)
