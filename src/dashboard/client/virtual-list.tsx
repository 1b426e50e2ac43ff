import type { ComponentChildren } from 'preact'
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks'

interface VirtualListProps<Item> {
  readonly items: readonly Item[]
  readonly rowHeight: number
  /** Identifies an item. Its row keeps its element, and with it the focus, when it moves. */
  keyOf(item: Item): string
  /** The row must contain one element with `data-row`, which gets the focus, and `tabIndex` as given. */
  row(item: Item, tabIndex: 0 | -1): ComponentChildren
}

/**
 * Renders only the rows in view. The arrow keys, Page Up, Page Down, Home and End move from row to row, and Tab enters
 * and leaves the list in one step.
 */
export function VirtualList<Item>({ items, rowHeight, keyOf, row }: VirtualListProps<Item>) {
  const box = useRef<HTMLDivElement>(null)
  const [view, setView] = useState({ top: 0, height: 600 })
  const [activeKey, setActiveKey] = useState<string>()
  const wanted = useRef<string | undefined>(undefined)

  useLayoutEffect(() => {
    const element = box.current
    if (element === null) return
    const measure = (): void => setView({ top: element.scrollTop, height: element.clientHeight })
    const observer = new ResizeObserver(measure)
    observer.observe(element)
    element.addEventListener('scroll', measure, { passive: true })
    return () => {
      observer.disconnect()
      element.removeEventListener('scroll', measure)
    }
  }, [])

  const from = Math.max(0, Math.floor(view.top / rowHeight) - OVERSCAN)
  const to = Math.min(items.length, Math.ceil((view.top + view.height) / rowHeight) + OVERSCAN)
  const shown = items.slice(from, to)
  const isActiveShown = shown.some((item) => keyOf(item) === activeKey)
  const firstInView = items[Math.min(items.length - 1, Math.ceil(view.top / rowHeight))]
  const tabbable = isActiveShown ? activeKey : firstInView === undefined ? undefined : keyOf(firstInView)

  useEffect(() => {
    if (wanted.current === undefined) return
    const element = box.current?.querySelector<HTMLElement>(`[data-item="${CSS.escape(wanted.current)}"] [data-row]`)
    if (!element) return
    wanted.current = undefined
    element.focus({ preventScroll: true })
  })

  const moveTo = (index: number): void => {
    const element = box.current
    const item = items[index]
    if (element === null || item === undefined) return
    const top = index * rowHeight
    if (top < element.scrollTop) element.scrollTop = top
    else if (top + rowHeight > element.scrollTop + element.clientHeight) {
      element.scrollTop = top + rowHeight - element.clientHeight
    }
    wanted.current = keyOf(item)
    setActiveKey(wanted.current)
    setView({ top: element.scrollTop, height: element.clientHeight })
  }

  const onKeyDown = (event: KeyboardEvent): void => {
    const page = Math.max(1, Math.floor(view.height / rowHeight) - 1)
    const steps: Record<string, number> = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page }
    const at = items.findIndex((item) => keyOf(item) === tabbable)
    const step = steps[event.key]
    const target =
      event.key === 'Home' ? 0 : event.key === 'End' ? items.length - 1 : step === undefined ? undefined : at + step
    if (target === undefined || event.ctrlKey || event.metaKey || event.altKey) return
    event.preventDefault()
    moveTo(Math.min(items.length - 1, Math.max(0, target)))
  }

  return (
    <div class="rows" role="rowgroup" ref={box} onKeyDown={onKeyDown}>
      <div class="rows-space" role="presentation" style={{ height: `${items.length * rowHeight}px` }}>
        {shown.map((item, index) => {
          const key = keyOf(item)
          return (
            <div
              key={key}
              class="row"
              role="row"
              aria-rowindex={from + index + 2}
              data-item={key}
              style={{ transform: `translateY(${(from + index) * rowHeight}px)`, height: `${rowHeight}px` }}
              onFocusIn={() => setActiveKey(key)}
            >
              {row(item, key === tabbable ? 0 : -1)}
            </div>
          )
        })}
      </div>
    </div>
  )
}

/** Rows beyond the edges, so that scrolling does not show empty space. */
const OVERSCAN = 6
