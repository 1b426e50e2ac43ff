import type { GraphNode, WaitGraph } from '../wire.ts'
import { apiUrl, useFetched } from './api.ts'
import { counted, visible } from './format.ts'
import { layOut, NODE_HEIGHT, NODE_WIDTH, type Placed } from './graph-layout.ts'
import { type LiveStore, live } from './live.ts'
import { DeadlockNotice } from './lock-page.tsx'
import { Empty, Scroll } from './parts.tsx'
import { lockHref } from './route.ts'

/** Who waits for whom, as a picture and in words. */
export function Waits({ stores }: { stores: LiveStore[] }) {
  return (
    <>
      {stores.map((store) => (
        <StoreWaits store={store} showsStore={stores.length > 1} />
      ))}
    </>
  )
}

function StoreWaits({ store, showsStore }: { store: LiveStore; showsStore: boolean }) {
  const { value: graph, error } = useFetched<WaitGraph>(apiUrl('waits', { store: store.index }), live.steps)
  const title = showsStore ? store.info.name : 'Who waits for whom'
  return (
    <section class="panel" aria-label={`Waits in ${store.info.name}`}>
      <h2>{title}</h2>
      {error && <Empty>{error}</Empty>}
      {graph !== undefined && <Graph store={store} graph={graph} />}
    </section>
  )
}

function Graph({ store, graph }: { store: LiveStore; graph: WaitGraph }) {
  if (graph.nodes.length === 0) {
    return (
      <Empty>
        {store.info.can?.waiters === false ? 'This store does not show who waits.' : 'No claim waits for a lock.'}
      </Empty>
    )
  }
  const { nodes, edges, width, height } = layOut(graph)
  return (
    <>
      {graph.cycles.map((cycle) => (
        <div class="graph-notice">
          <DeadlockNotice detail={{ cycle }} />
        </div>
      ))}
      <Scroll label={`Graph of ${store.info.name}`} class="graph">
        <svg width={width} height={height} role="group" aria-label="The wait-for graph">
          <defs>
            {['', 'bad'].map((tone) => (
              <marker
                id={`arrow${tone}`}
                class={`arrow ${tone}`}
                viewBox="0 0 8 8"
                refX="5"
                refY="4"
                markerWidth="7"
                markerHeight="7"
                orient="auto"
              >
                <path d="M0,0 L8,4 L0,8 z" />
              </marker>
            ))}
          </defs>
          {edges.map(({ edge, path }) => (
            <path
              class={`edge ${edge.kind} ${edge.inCycle ? 'bad' : ''}`}
              d={path}
              marker-end={`url(#arrow${edge.inCycle ? 'bad' : ''})`}
            />
          ))}
          {nodes.map((placed) => (
            <GraphBox placed={placed} store={store} />
          ))}
        </svg>
      </Scroll>
      <p class="note muted">
        A dashed line waits for a lock; a solid line leads to who holds it.
        {graph.more > 0 &&
          ` ${counted(graph.more, 'more lock')} with waiters ${graph.more === 1 ? 'is' : 'are'} not shown.`}
      </p>
    </>
  )
}

function GraphBox({ placed: { node, x, y }, store }: { placed: Placed; store: LiveStore }) {
  const box = (
    <g class={`node ${node.kind} ${node.inCycle ? 'bad' : ''}`} transform={`translate(${x},${y})`}>
      <rect width={NODE_WIDTH} height={NODE_HEIGHT} rx={node.kind === 'lock' ? 7 : NODE_HEIGHT / 2} />
      <text x={14} y={NODE_HEIGHT / 2 + 4.5}>
        {shortened(visible(node.label), node.waiters === undefined ? 22 : 19)}
      </text>
      {node.waiters !== undefined && (
        <text class="waiters" x={NODE_WIDTH - 12} y={NODE_HEIGHT / 2 + 4.5} text-anchor="end">
          {node.waiters}
        </text>
      )}
      <title>{wordsFor(node)}</title>
    </g>
  )
  if (node.kind === 'holder') return box
  return <a href={lockHref(store.index, node.label)}>{box}</a>
}

const wordsFor = ({ kind, label, waiters }: GraphNode): string =>
  kind === 'lock' ? `${visible(label)}, ${counted(waiters ?? 0, 'waiter')}` : `holder ${visible(label)}`

const shortened = (text: string, most: number): string =>
  text.length <= most ? text : `${text.slice(0, most - 8)}…${text.slice(-7)}`
