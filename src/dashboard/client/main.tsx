import { render } from 'preact'
import { apiUrl } from './api.ts'
import { App } from './app.tsx'
import { connectLive } from './live.ts'
import { applyTheme } from './theme.tsx'

applyTheme()
// The access token must not stay in the address bar.
if (location.search !== '') history.replaceState(null, '', location.pathname + location.hash)
connectLive(apiUrl('stream'))
const root = document.getElementById('app')
if (root !== null) {
  root.textContent = ''
  render(<App />, root)
}
