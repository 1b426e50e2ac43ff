// @ts-check
import { installed } from '../support/fetched.mjs'

/**
 * @typedef {object} Tools
 * @property {string} word that selects all of them
 * @property {string} tests
 * @property {readonly string[]} names
 * @property {(name: string) => string} packages what npm has to install
 */

const BUNDLERS = 'webpack@5 webpack-cli rollup@4 @rollup/plugin-node-resolve @rollup/plugin-commonjs'
const JEST = 'jest@30 babel-jest@30 @babel/core@7 @babel/preset-env@7 ts-jest@29 @swc/jest @swc/core typescript@5.9'
const RUNNERS = `${JEST} mocha tsx ts-node@10`

/** @type {readonly Tools[]} */
const tools = [
  {
    word: 'bundlers',
    tests: 'test/tools/bundlers.test.ts',
    names: ['rolldown', 'vite', 'webpack', 'rollup'],
    packages: () => BUNDLERS,
  },
  {
    word: 'runners',
    tests: 'test/tools/runners.matrix.ts',
    names: [
      ...['jest', 'jest-esm', 'babel-jest', 'swc-jest', 'ts-jest'],
      ...['mocha', 'mocha-esm', 'tsx', 'tsx-esm', 'ts-node'],
    ],
    packages: () => RUNNERS,
  },
  {
    word: 'typescript',
    tests: 'test/tools/typescript.matrix.ts',
    names: ['5.4', '5.6', '5.8', '5.9', '6', '7'].map((version) => `typescript-${version}`),
    packages: (name) => name.replace('-', '@'),
  },
]

/** @returns {import('../matrix.mjs').Row[]} */
export const toolRows = () =>
  tools.flatMap(({ word, tests, names, packages }) =>
    names.map((name) => ({
      words: [word, name],
      async runs() {
        const folder = await installed(word === 'typescript' ? name : word, packages(name))
        const env = {
          HOLDFAST_TEST_SERVERS: word === 'typescript' ? 'none' : 'redis,postgres',
          HOLDFAST_MATRIX_TOOL: name,
          HOLDFAST_MATRIX_TOOLS: folder,
        }
        return [{ head: [process.version, '', '', name], node: process.execPath, filters: [tests], env }]
      },
    })),
  )
