import type { Socket } from 'node:net'
import { deliver, type Item } from '../../test/harness/proxy.ts'
import type { Fault } from './fault.ts'
import type { Conversation, Message } from './message.ts'

/** What a connection asks of the run that it belongs to. */
export interface Director {
  /** Numbers the message, and returns the fault that hits it. */
  faultOf(direction: 'q' | 'r', message: Message, conversation: Conversation): Fault | undefined
  /** Resolves when a message that is held back may go on. */
  untilLate(): Promise<void>
  untilOvertaken(): Promise<void>
  untilReconnected(): Promise<void>
  untilGivenUp(): Promise<void>
}

export interface Joined {
  reset(): void
  /** Nothing goes through any more, as if the server hung. */
  pause(): void
  resume(): void
}

/** Joins a client with a server, and applies faults to single messages between them. */
export function joinMessages({
  client,
  server,
  conversation,
  director,
}: {
  client: Socket
  server: Socket
  conversation: Conversation
  director: Director
}): Joined {
  /** One for each request whose reply is due: undefined for the server's, or an injected one. */
  const due: (Buffer | undefined)[] = []
  const reset = (): void => {
    client.resetAndDestroy()
    server.resetAndDestroy()
  }
  const toServer = new Lane(server)
  const toClient = new Lane(client)
  /** The client sees the end first: a session ends its locks, and two clients are compared at the same moment. */
  const endAfterClient = (): void => {
    toClient.push('end')
    toClient.silence()
    const end = (): void => void server.resetAndDestroy()
    client.once('close', end)
    setTimeout(end, CLIENT_SEES_END_WITHIN_MS).unref()
  }

  /** Injected replies wait for the replies to earlier requests. */
  const passInjected = (): void => {
    for (let next = due[0]; next !== undefined; next = due[0]) {
      due.shift()
      toClient.push(next)
    }
  }
  const inject = (fault: Fault, message: Message): void => {
    const { bytes, isFatal } = conversation.errorReply(fault, message)
    if (message.kind === 'request') {
      due.push(bytes)
      passInjected()
    } else {
      toClient.push(bytes)
    }
    if (isFatal) endAfterClient()
  }

  const pass = (lane: Lane, message: Message): void => {
    if (message.kind === 'request') due.push(undefined)
    lane.push(message.bytes)
    if (message.kind === 'reply') {
      due.shift()
      passInjected()
    }
  }
  const apply = (fault: Fault, lane: Lane, message: Message): void => {
    switch (fault) {
      case 'lost':
        lane.silence()
        void director.untilGivenUp().then(reset)
        return
      case 'late':
        lane.holdUntil(director.untilLate())
        pass(lane, message)
        return
      case 'overtaken':
        lane.holdUntil(director.untilOvertaken())
        pass(lane, message)
        return
      case 'cut-before':
        reset()
        return
      case 'cut-after':
        lane.push(message.bytes)
        // Not a reset in this direction: it would also discard the bytes that the receiver has not read yet.
        if (lane === toClient) {
          endAfterClient()
          return
        }
        lane.push('end')
        lane.silence()
        client.resetAndDestroy()
        return
      case 'reconnected':
      case 'twice':
        lane.holdUntil(fault === 'twice' ? director.untilOvertaken() : director.untilReconnected())
        pass(lane, message)
        lane.push('end')
        client.resetAndDestroy()
        return
      default:
        inject(fault, message)
    }
  }
  const receive = (direction: 'q' | 'r', lane: Lane, messages: readonly Message[]): void => {
    for (const message of messages) {
      const fault = director.faultOf(direction, message, conversation)
      if (fault === undefined) pass(lane, message)
      else apply(fault, lane, message)
    }
  }
  client.on('data', (chunk) => receive('q', toServer, conversation.fromClient(chunk)))
  server.on('data', (chunk) => receive('r', toClient, conversation.fromServer(chunk)))
  client.on('end', () => toServer.push('end'))
  server.on('end', () => toClient.push('end'))
  client.on('error', () => toServer.push('end'))
  server.on('error', () => toClient.push('reset'))
  // An end that comes without a message would otherwise leave the other side open.
  client.on('close', () => toServer.push('end'))
  server.on('close', () => toClient.push('end'))
  const pause = (): void => {
    client.pause()
    server.pause()
  }
  const resume = (): void => {
    client.resume()
    server.resume()
  }
  return { reset, pause, resume }
}

const CLIENT_SEES_END_WITHIN_MS = 200

/** One direction of a connection. */
class Lane {
  readonly #target: Socket
  readonly #queue: Item[] = []
  #holds = 0
  #isSilent = false

  constructor(target: Socket) {
    this.#target = target
  }

  push(item: Item): void {
    if (this.#isSilent) return
    this.#queue.push(item)
    this.#flush()
  }

  /** Everything after this vanishes. */
  silence(): void {
    this.#isSilent = true
  }

  holdUntil(moment: Promise<void>): void {
    this.#holds += 1
    void moment.then(() => {
      this.#holds -= 1
      this.#flush()
    })
  }

  #flush(): void {
    while (this.#holds === 0 && this.#queue.length > 0) deliver(this.#target, this.#queue.shift() as Item)
  }
}
