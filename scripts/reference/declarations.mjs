// @ts-check
// Reads declarations with their doc comments from the .d.ts files in dist/. tsc writes these files in one layout: a
// statement begins in the first column, a member at an indent of four. A few patterns are enough to read that.
import { readFileSync } from 'node:fs'
import { declaredAt } from '../public-surface.mjs'

/** @typedef {import('../public-surface.mjs').Place} Place */
/** @typedef {{ text: string, tags: Record<string, string> }} Comment `tags`: `default`, `throws`, … without the `@` */
/** @typedef {{ name: string, signature: string, comment: Comment }} Member */
/**
 * @typedef {object} Declaration
 * @property {'class' | 'interface' | 'type' | 'function' | 'const'} kind
 * @property {string} name
 * @property {string[]} signatures one line each; the overloads of a function are several
 * @property {Comment} comment
 * @property {Member[]} members of a class or an interface, without the inherited ones
 * @property {string[]} bases what it extends, such as `LockInfo` or `Pick<CampaignOptions, 'value'>`
 */

/** How a declaration begins: its kind and its name. */
const HEAD = /^(?:export\s+)?(?:declare\s+)?(?:abstract\s+)?(class|interface|type|function|const)\s+([\w$]+)/

/** @type {Map<string, Map<string, Declaration>>} */
const files = new Map()

/**
 * @param {Place} place
 * @returns {Declaration}
 */
export function declaration({ file, name }) {
  const known = files.get(file) ?? read(file)
  files.set(file, known)
  const found = known.get(name)
  if (found === undefined) throw new Error(`${file} declares no ${name}`)
  return found
}

/**
 * The members with those of its bases, except for the bases that `skip` names and those of the platform.
 *
 * @param {Place} place
 * @param {(base: Place) => boolean} [skip]
 * @returns {Member[]}
 */
export function allMembers(place, skip = () => false) {
  const { members, bases } = declaration(place)
  const own = new Set(members.map(({ name }) => name))
  const inherited = bases.flatMap((base) => {
    const at = /^\w+$/.test(base) ? declaredAt(place.file, base) : undefined
    return at === undefined || skip(at) ? [] : allMembers(at, skip)
  })
  return [...members, ...inherited.filter(({ name }) => !own.has(name))]
}

/** @param {string} file */
function read(file) {
  /** @type {Map<string, Declaration>} */
  const found = new Map()
  for (const { comment, code } of chunks(readFileSync(file, 'utf8').split('\n'), '')) {
    const head = HEAD.exec(code)
    if (head === null) continue
    const [, kind = '', name = ''] = head
    const before = found.get(name)
    const signature = oneLine(
      withoutComments(code)
        .replace(/^export\s+/, '')
        .replace(/\bdeclare\s+/, ''),
    )
    if (before !== undefined) {
      before.signatures.push(signature)
      continue
    }
    const isBody = kind === 'class' || kind === 'interface'
    found.set(name, {
      kind: /** @type {Declaration['kind']} */ (kind),
      name,
      signatures: [signature],
      comment,
      members: isBody ? members(code) : [],
      bases: isBody ? bases(code) : [],
    })
  }
  return found
}

/** @param {string} code of a class or an interface */
function members(code) {
  const lines = code.split('\n').slice(1, -1)
  return chunks(lines, '    ').flatMap(({ comment, code: text }) => {
    const signature = oneLine(withoutComments(text)).replace(/;$/, '')
    const name = /^(?:(?:readonly|get|set|static|abstract)\s+)*([\w$]+|\[[^\]]+\]|#\w+)/.exec(signature)?.[1]
    if (name === undefined || name.startsWith('#') || /^private\b/.test(signature)) return []
    return [{ name, signature, comment }]
  })
}

/** @param {string} code */
function bases(code) {
  const list = /^[^{]*?\sextends\s+([^{]*?)(?:\s+implements\s[^{]*)?\{/.exec(
    code.replace(/^[^<{]*?\w+<[^{]*?>(?= extends)/, 'x'),
  )?.[1]
  return list === undefined ? [] : splitTop(list).map((each) => each.trim())
}

/**
 * Splits a list at the commas that are not inside brackets.
 *
 * @param {string} list
 */
function splitTop(list) {
  let depth = 0
  /** @type {string[]} */
  const parts = ['']
  for (const char of list) {
    if ('<({['.includes(char)) depth += 1
    if ('>)}]'.includes(char)) depth -= 1
    if (char === ',' && depth === 0) parts.push('')
    else parts.push(parts.pop() + char)
  }
  return parts
}

/**
 * The statements or members that begin at an indent, each with the doc comment before it.
 *
 * @param {readonly string[]} lines
 * @param {string} indent
 */
function chunks(lines, indent) {
  /** @type {{ comment: Comment, code: string }[]} */
  const found = []
  /** @type {string[] | undefined} */
  let open
  let comment = ''
  for (const line of lines) {
    const begins = line.startsWith(indent) && /^[^\s}]/.test(line.slice(indent.length))
    if (open !== undefined) {
      open.push(line)
    } else if (line.startsWith(`${indent}/**`)) {
      open = [line]
    } else if (begins) {
      found.push({ comment: parse(comment), code: line.trim() })
      comment = ''
    } else if (line.trim() !== '') {
      const last = found.at(-1)
      if (last !== undefined) last.code += `\n${line}`
    }
    if (open?.at(-1)?.trimEnd().endsWith('*/')) {
      comment = open.join('\n')
      open = undefined
    }
  }
  return found
}

/**
 * @param {string} comment with its stars
 * @returns {Comment}
 */
function parse(comment) {
  const text = comment
    .replace(/^\s*\/\*\*/, '')
    .replace(/\*\/\s*$/, '')
    .replaceAll(/^\s*\* ?/gm, '')
  const [first = '', ...rest] = text.split(/^\s*@(?=\w)/m)
  /** @type {Record<string, string>} */
  const tags = {}
  for (const tag of rest) {
    const [, name = '', value = ''] = /^(\w+)\s*([\s\S]*)$/.exec(tag) ?? []
    const flat = name === 'example' ? value.trimEnd() : oneLine(value)
    tags[name] = tags[name] === undefined ? flat : `${tags[name]}; ${flat}`
  }
  const paragraphs = first.split(/\n\s*\n/).map(oneLine)
  return {
    text: paragraphs
      .join('\n\n')
      .trim()
      .replaceAll(/\{@link (\w+)\}/g, '`$1`'),
    tags,
  }
}

/** @param {string} text */
const oneLine = (text) => text.replaceAll(/\s+/g, ' ').trim()

/** @param {string} text */
const withoutComments = (text) => text.replaceAll(/\/\*[\s\S]*?\*\//g, '')
