import { useEffect, useRef, useState } from 'preact/hooks'
import { counted } from './format.ts'
import { useLive } from './live.ts'

/** Tells a screen reader what cannot be missed: the connection, a store that is down, and a deadlock. */
export function Announcer() {
  const { connection, stores } = useLive()
  const [text, setText] = useState('')
  const last = useRef('')
  const down = stores.filter(({ error }) => error !== undefined).map(({ info }) => info.name)
  let deadlocked = 0
  for (const { locks } of stores) for (const lock of locks.values()) if (lock.isDeadlocked) deadlocked += 1
  const now = [
    connection === 'lost' ? 'The connection is lost.' : '',
    down.length > 0 ? `${down.join(', ')} cannot be read.` : '',
    deadlocked > 0 ? `${counted(deadlocked, 'lock')} in a deadlock.` : '',
  ]
    .filter(Boolean)
    .join(' ')
  useEffect(() => {
    if (now === last.current) return
    last.current = now
    setText(now === '' ? 'All is well again.' : now)
  }, [now])
  return (
    <div class="hidden" role="status" aria-live="polite">
      {text}
    </div>
  )
}
