import { checks, conversions } from './arguments.ts'
import { callbacks, held } from './callback.ts'
import { exclusive, mixed, shared } from './modes.ts'
import { names } from './names.ts'
import { ifAvailable, signal } from './options.ts'
import { query } from './query.ts'
import { steal } from './steal.ts'
import type { Section } from './test-context.ts'

/** The specification, section by section. */
export const sections: readonly (readonly [title: string, section: Section])[] = [
  ['arguments', conversions],
  ['steps of request()', checks],
  ['callback', callbacks],
  ['held', held],
  ['mode exclusive', exclusive],
  ['mode shared', shared],
  ['modes mixed', mixed],
  ['ifAvailable', ifAvailable],
  ['signal', signal],
  ['steal', steal],
  ['query', query],
  ['resource names', names],
]
