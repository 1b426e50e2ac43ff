// @ts-check
// Bundles the page of the dashboard into the texts of one module, so that no file has to be read or served from a disk.
import { readFileSync } from 'node:fs'
import { build } from 'esbuild'
import { root } from './command.mjs'

const client = `${root}src/dashboard/client/`

/**
 * The code of dist/dashboard/assets.js.
 *
 * @returns {Promise<string>}
 */
export async function dashboardAssets() {
  const { outputFiles } = await build({
    entryPoints: { app: `${client}main.tsx`, style: `${client}style.css` },
    bundle: true,
    minify: true,
    format: 'esm',
    target: 'es2022',
    jsx: 'automatic',
    jsxImportSource: 'preact',
    outdir: `${root}.cache`,
    write: false,
    logLevel: 'silent',
    // Its licence asks for the notice in every copy.
    banner: { js: `/*! Contains Preact.\n${readFileSync(`${root}node_modules/preact/LICENSE`, 'utf8').trim()} */` },
  })
  /** @param {string} end */
  const text = (end) => outputFiles.find(({ path }) => path.endsWith(end))?.text ?? ''
  const icon = readFileSync(`${client}icon.svg`, 'utf8').trim()
  return `export const assets = ${JSON.stringify({ script: text('.js'), style: text('.css'), icon })};\n`
}
