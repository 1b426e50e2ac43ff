import { useState } from 'preact/hooks'

type Theme = 'auto' | 'light' | 'dark'
const NEXT: Record<Theme, Theme> = { auto: 'light', light: 'dark', dark: 'auto' }
const KEY = 'holdfast-theme'

function storedTheme(): Theme {
  try {
    const text = localStorage.getItem(KEY)
    return text === 'light' || text === 'dark' ? text : 'auto'
  } catch {
    // A browser may forbid storage. The page then follows the system.
    return 'auto'
  }
}

export function applyTheme(theme = storedTheme()): void {
  document.documentElement.dataset['theme'] = theme
}

/** Switches between the system's colours, light and dark. */
export function ThemeButton() {
  const [theme, setTheme] = useState(storedTheme)
  const change = (): void => {
    const next = NEXT[theme]
    setTheme(next)
    applyTheme(next)
    try {
      localStorage.setItem(KEY, next)
    } catch {
      // As above: the choice lasts until the page is loaded again.
    }
  }
  return (
    <button type="button" class="quiet" onClick={change} aria-label={`Colours: ${theme}. Change`}>
      <span aria-hidden="true">{{ auto: '◐', light: '☀', dark: '☾' }[theme]}</span>
    </button>
  )
}
