import { writeFileSync } from 'node:fs'
import type { Episode } from '../episode.ts'
import { chartOf } from './chart.ts'

/** Keeps the chart of the episode in which there is most to see. */
export class BestChart {
  readonly #file: string
  readonly #title: string
  #interest = -1

  constructor(file: string, title: string) {
    this.#file = file
    this.#title = title
  }

  add(episode: Pick<Episode, 'leases' | 'done' | 'verdict' | 'setting' | 'seed'>): void {
    const title = `${this.#title}, episode ${episode.seed}`
    const chart = chartOf(episode, { title, clients: episode.setting.clients.length })
    if (chart === undefined || chart.interest <= this.#interest) return
    this.#interest = chart.interest
    writeFileSync(this.#file, chart.svg)
  }
}
