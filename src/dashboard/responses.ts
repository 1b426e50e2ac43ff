import { assets } from './assets.ts'

/**
 * Every answer has these. Scripts and styles come from this server only, nothing is inline, and no other page may frame
 * this one or read its answers.
 */
const HEADERS = {
  'content-security-policy':
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; " +
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
  'x-content-type-options': 'nosniff',
  'x-frame-options': 'DENY',
  'referrer-policy': 'no-referrer',
  'cross-origin-opener-policy': 'same-origin',
  'cross-origin-resource-policy': 'same-origin',
  // What the store holds must not stay in a cache.
  'cache-control': 'no-store',
}

export function respond(body: string | ReadableStream | null, type: string, status = 200, more = {}): Response {
  return new Response(body, { status, headers: { ...HEADERS, 'content-type': type, ...more } })
}

export const json = (value: unknown, status = 200): Response =>
  respond(JSON.stringify(value), 'application/json; charset=utf-8', status)

/** `x-accel-buffering`: nginx would keep events until its buffer is full. */
export const events = (stream: ReadableStream): Response =>
  respond(stream, 'text/event-stream; charset=utf-8', 200, { 'x-accel-buffering': 'no' })

/** A page with one sentence, for people. */
export const sentence = (text: string, status: number, more = {}): Response =>
  respond(
    `<!doctype html><html lang="en"><meta charset="utf-8"><title>Holdfast</title><p>${escapeHtml(text)}</p></html>`,
    HTML,
    status,
    more,
  )

/**
 * The page. Its links are relative, so that it works under every path, and behind a proxy that removes a part of it:
 * with and without a slash at the end.
 */
export function page(pathname: string): Response {
  const [, last = ''] = /([^/]*)$/.exec(pathname) ?? []
  const base = escapeHtml(last === '' ? './' : `./${last}/`)
  return respond(
    `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="holdfast-base" content="${base}">
<title>Holdfast</title>
<link rel="icon" href="${base}icon.svg">
<link rel="stylesheet" href="${base}app.css">
<script type="module" src="${base}app.js"></script>
</head>
<body>
<div id="app"><noscript>This page needs JavaScript. holdfast ls shows the same locks in a terminal.</noscript></div>
</body>
</html>
`,
    HTML,
  )
}

/** A file of the page, or undefined. */
export function asset(pathname: string): Response | undefined {
  if (pathname.endsWith('/app.js')) return respond(assets.script, 'text/javascript; charset=utf-8')
  if (pathname.endsWith('/app.css')) return respond(assets.style, 'text/css; charset=utf-8')
  if (pathname.endsWith('/icon.svg')) return respond(assets.icon, 'image/svg+xml')
  return undefined
}

export const escapeHtml = (text: string): string =>
  text.replaceAll(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`)

const HTML = 'text/html; charset=utf-8'
