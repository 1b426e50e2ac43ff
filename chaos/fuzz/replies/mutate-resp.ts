import type { Draw } from '../../draw.ts'
import { ODD_NUMBERS, oddBytes, oddText } from '../odd.ts'
import { bulk, list, type RespValue, readResp, whole, writeResp } from './resp-value.ts'

/** A well-formed reply that the server did not send: a wrong type, value, order or number of parts. */
export function mutateResp(draw: Draw, reply: Buffer): { bytes: Buffer; how: string } {
  const root: Root = { value: readResp(reply) }
  const isOfSubscription = SUBSCRIPTION.test(reply.toString('latin1', 0, 40))
  const places = isOfSubscription ? placesIn(root).slice(-1) : placesIn(root)
  // The whole reply as often as a part of it.
  const place = draw.chance(0.4) ? (places[0] as Place) : draw.one(places)
  const how = isOfSubscription ? mutateText(draw, place) : mutate(draw, place, reply)
  return { bytes: writeResp(root.value), how }
}

/** ioredis ends the process if one of these has another shape, and no driver can prevent that. */
const SUBSCRIPTION = /^[*>]\d+\r\n\$\d+\r\n[sp]?(?:(?:un)?subscribe|message)\r\n/i

interface Root {
  value: RespValue
}

interface Place {
  readonly value: RespValue
  set(value: RespValue): void
}

function placesIn(root: Root): Place[] {
  const places: Place[] = [
    {
      value: root.value,
      set(value) {
        root.value = value
      },
    },
  ]
  for (let at = 0; at < places.length; at += 1) {
    const { value } = places[at] as Place
    if (!('items' in value)) continue
    value.items?.forEach((item, index) => {
      places.push({ value: item, set: (changed) => value.items?.splice(index, 1, changed) })
    })
  }
  return places
}

function mutate(draw: Draw, place: Place, reply: Buffer): string {
  const { value } = place
  if ('items' in value && value.items !== null && draw.chance(0.5)) return mutateList(draw, value.items)
  if ('bytes' in value && value.bytes !== null && draw.chance(0.6)) {
    const text = draw.chance(0.1) ? oddBytes(draw).toString('latin1') : oddText(draw, value.bytes.toString())
    place.set({ ...value, bytes: Buffer.from(text) })
    return `text ${JSON.stringify(text.slice(0, 80))}`
  }
  if (value.type === ':' && draw.chance(0.6)) {
    const number = draw.one(WHOLE_NUMBERS)
    place.set(whole(number))
    return `integer ${number}`
  }
  const odd = oddValue(draw, reply)
  place.set(odd)
  return `${value.type} became ${writeResp(odd).toString('latin1').slice(0, 80)}`
}

function mutateText(draw: Draw, { value }: Place): string {
  if (!('bytes' in value)) return 'nothing changed'
  value.bytes = Buffer.from(oddText(draw, value.bytes?.toString() ?? ''))
  return `message ${JSON.stringify(value.bytes.toString().slice(0, 80))}`
}

function mutateList(draw: Draw, items: RespValue[]): string {
  const at = draw.whole(0, items.length)
  switch (draw.whole(0, 5)) {
    case 0:
      items.splice(at, 1)
      return `entry ${at} missing`
    case 1:
      items.splice(at, 0, items[at] ?? whole('1'))
      return `entry ${at} twice`
    case 2:
      items.reverse()
      return 'entries reversed'
    case 3:
      items.length = 0
      return 'no entries'
    case 4:
      items.push(...Array.from({ length: draw.one([1, 100, 10_000]) }, () => whole(draw.one(WHOLE_NUMBERS))))
      return `${items.length} entries`
    default:
      items.splice(at, 1, list(...items))
      return `nested at ${at}`
  }
}

/** What a RESP integer may be. Clients reject anything else. */
const WHOLE_NUMBERS = ODD_NUMBERS.filter((text) => /^-?\d{1,19}$/.test(text))

function oddValue(draw: Draw, reply: Buffer): RespValue {
  switch (draw.whole(0, 11)) {
    case 0:
      return { type: '$', bytes: null }
    case 1:
      return { type: '*', items: null }
    case 2:
      return whole(draw.one(WHOLE_NUMBERS))
    case 3:
      return bulk(draw.one(ODD_NUMBERS))
    case 4:
      return { type: '+', text: draw.one(['OK', 'QUEUED', 'PONG', '']) }
    case 5:
      return { type: '-', text: draw.one(ERRORS) }
    case 6:
      return list()
    case 7:
      return list(list(list(whole('1'))))
    case 8:
      return list(...Array.from({ length: 5 }, () => whole(draw.one(WHOLE_NUMBERS))))
    case 9:
      return list(bulk(draw.one(['y', 'n', 'x', 'k', 'o', 'm', 'b', 'f', 's', 'g', 'z'])), bulk(draw.one(ODD_NUMBERS)))
    case 10:
      return list(whole(`${Date.now()}`), draw.chance(0.5) ? bulk('g') : readResp(reply))
    default:
      return bulk(oddText(draw, ''))
  }
}

const ERRORS: readonly string[] = [
  ...[
    'ERR',
    'ERR ',
    'WRONGTYPE wrong kind',
    'NOSCRIPT none',
    'BUSY script',
    'MASTERDOWN no',
    'READONLY no',
    'OOM full',
  ],
  ...[
    'LOADING',
    'NOAUTH no',
    'NOPERM no',
    'TRYAGAIN later',
    'CLUSTERDOWN',
    'MOVED 1 127.0.0.1:1',
    'MOVED x',
    'ASK 1 :',
  ],
  ...['EXECABORT', 'UNKNOWN', 'ERR unknown command `EVALSHA`, with args beginning with: ', 'CROSSSLOT'],
]
