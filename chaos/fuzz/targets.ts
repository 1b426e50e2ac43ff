import { input } from './input/input.ts'
import { messages } from './messages/messages.ts'
import { replies } from './replies/replies.ts'
import { rows } from './rows/rows.ts'
import type { Target } from './target.ts'

export const TARGETS: readonly Target[] = [replies, messages, rows, input]
