import type { StoreName } from './client.ts'
import type { Fault } from './fault.ts'
import type { Scene } from './scenes/scene.ts'

/** One run: a scene on a store with one fault or two. */
export interface Case {
  readonly scene: Scene
  readonly store: StoreName
  readonly isMirrored: boolean
  /** What it counts as. */
  readonly kind: 'faults' | 'majorities' | 'pairs'
  /** By the place of the message. */
  readonly faults: ReadonlyMap<string, Fault>
  /** The messages, for people. */
  readonly labels: readonly string[]
}

/** `redis/hand-off/a0.1q3:late` or `redis~/hand-off/…+…`: ~ means that the client packages are exchanged. */
export function caseText({ scene, store, isMirrored, faults }: Case): string {
  const each = [...faults].map(([place, fault]) => `${place}:${fault}`)
  return `${store}${isMirrored ? '~' : ''}/${scene.name}/${each.join('+')}`
}

/** The scene on its store, which is a row of the report. */
export const rowKey = (each: Case): string => caseText({ ...each, faults: new Map() })

export function readCase(text: string, scenes: readonly Scene[]): Case {
  const [store = '', name, faults = ''] = text.split('/')
  const scene = scenes.find((each) => each.name === name)
  const storeName = scene?.stores.find((each) => each === store.replace('~', ''))
  if (scene === undefined || storeName === undefined) throw new Error(`--only ${text}: no such scene`)
  const pairs = faults
    .split('+')
    .filter(Boolean)
    .map((each) => each.split(':') as [string, Fault])
  return {
    scene,
    store: storeName,
    isMirrored: store.endsWith('~'),
    kind: 'faults',
    faults: new Map(pairs),
    labels: [],
  }
}
