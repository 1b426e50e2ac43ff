/** A unit that a fault can hit: one request, one reply, or one message that the server sends by itself. */
export interface Message {
  readonly bytes: Buffer
  /** For people: the command, or the beginning of the reply. */
  readonly label: string
  /** A request is answered by one reply. The server sends an event without a request. */
  readonly kind: 'request' | 'reply' | 'event'
}

/** The state of one connection: it finds the messages in its two streams. Chunks may be split or joined anywhere. */
export interface Conversation {
  fromClient(chunk: Buffer): Message[]
  fromServer(chunk: Buffer): Message[]
  /** The errors that the server could send instead of this message. */
  errorsFor(message: Message): readonly string[]
  /** The bytes of such an error, for a request that is not delivered or in place of a reply. */
  errorReply(code: string, message: Message): ErrorReply
}

export interface ErrorReply {
  readonly bytes: Buffer
  /** The server closes the connection after this error. */
  readonly isFatal: boolean
}

export type Protocol = () => Conversation

/** Bytes that are not a complete message yet. */
export class Rest {
  #bytes: Buffer = Buffer.alloc(0)

  /** Calls `take` with everything that has arrived, until it finds no complete message. It returns where one ends. */
  push(chunk: Buffer, take: (bytes: Buffer) => number | undefined): void {
    this.#bytes = this.#bytes.length === 0 ? chunk : Buffer.concat([this.#bytes, chunk])
    while (this.#bytes.length > 0) {
      const end = take(this.#bytes)
      if (end === undefined) return
      this.#bytes = this.#bytes.subarray(end)
    }
  }
}
