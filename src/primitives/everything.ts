import { checkUrl, chooseUrl, connect } from '../connect.ts'
import { threadHeartbeat } from '../core/lease/renewer-thread.ts'
import type { Extras } from './instance-options.ts'

/** All stores, and the heartbeat's thread. */
export const everything: Extras = { chooseUrl, checkUrl, connect, threadHeartbeat }
