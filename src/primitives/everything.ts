import { checkUrl, chooseUrl, connect } from '../connect.ts'
import { threadHeartbeat } from '../core/lease/renewer-thread.ts'
import type { Extras } from './instance.ts'

/** Every store, and the heartbeat's thread. */
export const everything: Extras = { chooseUrl, checkUrl, connect, threadHeartbeat }
