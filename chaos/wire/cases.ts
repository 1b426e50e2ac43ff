import { Draw } from '../draw.ts'
import { type Case, caseText, rowKey } from './case.ts'
import type { Exploration } from './explore.ts'
import type { Seen } from './wires.ts'

/** Every scene on every store, without faults. `rows` draws so many of them. */
export function healthyOf({ scenes, stores, isMirrored = false, seed, rows }: Exploration): readonly Case[] {
  const all = scenes.flatMap((scene) =>
    stores
      .filter((store) => scene.stores.includes(store))
      .map((store): Case => ({ scene, store, isMirrored, kind: 'faults', faults: new Map(), labels: [] })),
  )
  return new Draw(`${seed}/rows`).some(all, rows ?? all.length)
}

/** A case for every message and every fault that can hit it, and pairs of them. */
export function casesOf(healthy: Case, messages: readonly Seen[], { seed, pairs }: Exploration): readonly Case[] {
  const all = messages.flatMap(({ place, label, faults }) =>
    faults.map((fault): Case => ({ ...healthy, faults: new Map([[place, fault]]), labels: [label] })),
  )
  // The nodes of Redlock are alike.
  const singles =
    healthy.store === 'redlock'
      ? all.filter(({ faults }) => [...faults.keys()].every((place) => place[1] === '0'))
      : all
  const draw = new Draw(`${seed}/${rowKey(healthy)}`)
  const most = new Set(all.flatMap(({ faults }) => [...faults.keys()])).size > 1 ? pairs : 0
  const two = (): readonly Case[] => {
    const drawn = draw.some(all, 2)
    // Two faults of one message are one: the second would replace the first.
    return new Set(drawn.flatMap(({ faults }) => [...faults.keys()])).size === 2 ? drawn : two()
  }
  return [
    ...singles,
    ...(healthy.store === 'redlock' ? majoritiesOf(singles, messages) : []),
    ...Array.from({ length: most }, () => joined('pairs', two())),
  ]
}

/**
 * In a drawn order, so that runs of all kinds overlap, and the slow ones are not the last ones. `sample` draws so many.
 */
export function inDrawnOrder(cases: readonly Case[], { seed, sample }: Exploration): readonly Case[] {
  const all = cases.toSorted((x, y) => (caseText(x) < caseText(y) ? -1 : 1))
  const draw = new Draw(seed)
  return draw
    .some(all, sample ?? all.length)
    .map((each) => ({ each, at: draw.fraction() }))
    .sort((x, y) => x.at - y.at)
    .map(({ each }) => each)
}

/** While a fault hits one node of three, the others are a quorum. So each fault hits the same message of two, too. */
function majoritiesOf(singles: readonly Case[], messages: readonly Seen[]): readonly Case[] {
  const byPlace = new Map(messages.map((message) => [message.place, message]))
  return singles.flatMap((each) =>
    [...each.faults].flatMap(([place, fault]) => {
      const twin = byPlace.get(`${place[0]}1${place.slice(2)}`)
      if (twin === undefined || !twin.faults.includes(fault)) return []
      return [joined('majorities', [each, { ...each, faults: new Map([[twin.place, fault]]), labels: [twin.label] }])]
    }),
  )
}

function joined(kind: Case['kind'], cases: readonly Case[]): Case {
  const faults = new Map(cases.flatMap((each) => [...each.faults]))
  return { ...(cases[0] as Case), kind, faults, labels: cases.flatMap(({ labels }) => labels) }
}
