import { UsageError } from './exit-codes.ts'
import { helpTexts } from './help.ts'
import { TOP_SORTINGS } from './top-state.ts'

/** Prints a script that completes commands, options and the names of held locks. */
export async function main([shell, ...more]: readonly string[]): Promise<number> {
  const script = shell !== undefined && Object.hasOwn(scripts, shell) ? scripts[shell] : undefined
  if (script === undefined || more.length > 0) throw new UsageError('completion needs one shell: bash, zsh or fish')
  process.stdout.write(script())
  return 0
}

/** The options of each command, as its help lists them. */
export const commandOptions: Readonly<Record<string, readonly string[]>> = Object.fromEntries(
  Object.entries(helpTexts).map(([command, text]) => [command, text.match(/(?<=^ {2}(?:-\w, )?)--[a-z-]+/gm) ?? []]),
)

/** The values of an option, where there are only these. */
const optionValues: readonly { command: string; option: string; values: readonly string[] }[] = [
  { command: 'ls', option: '--sort', values: ['name', 'age', 'waiters'] },
  { command: 'top', option: '--sort', values: TOP_SORTINGS },
  { command: 'migrate', option: '--only', values: ['fence'] },
]

/** The commands that take the name of a lock. */
const takesName: readonly string[] = ['run', 'show', 'wait', 'force-release', 'elect']

const commands = Object.keys(commandOptions)
const shells = ['bash', 'zsh', 'fish']

/** Names may contain anything: one that a shell would split or act on is left out. */
const NAMES = `holdfast ls --json 2>/dev/null | sed -n 's/.*"lockName":"\\([A-Za-z0-9:_./-]*\\)".*/\\1/p' | sort -u`

/** What may follow each command, except for names. */
const wordsOf = (command: string): string =>
  (command === 'completion' ? shells : command === 'help' ? commands : (commandOptions[command] ?? [])).join(' ')

/** One line of a script for each of them. */
const forEach = <Each>(list: readonly Each[], line: (each: Each) => string): string => list.map(line).join('\n')

/** The same for each option that has only some values. */
const forEachValue = (line: (when: string, values: string) => string): string =>
  forEach(optionValues, ({ command, option, values }) => line(`'${command} ${option}'`, values.join(' ')))

const scripts: Record<string, () => string> = {
  // The line is split here, because readline splits it at colons, too. So the part of a word before its last colon must
  // not be completed again.
  bash: () => `# holdfast completion bash > /etc/bash_completion.d/holdfast
_holdfast() {
  local line=\${COMP_LINE:0:COMP_POINT} words=
  local word=\${line##*[[:space:]]}
  local before=\${line%"$word"}
  before=\${before%"\${before##*[![:space:]]}"}
  local previous=\${before##*[[:space:]]}
  case " $before " in
    *' -- ') COMPREPLY=($(compgen -c -- "$word")); return ;;
    *' -- '*) return ;;
  esac
  case "\${COMP_WORDS[1]} $previous" in
    *' holdfast') words="${commands.join(' ')} help --version" ;;
${forEachValue((when, values) => `    ${when}) words="${values}" ;;`)}
${forEach([...commands, 'help'], (command) => {
  const names = takesName.includes(command) ? ` $(${NAMES})` : ''
  return `    '${command} '*) words="${wordsOf(command)}${names}" ;;`
})}
  esac
  COMPREPLY=($(compgen -W "$words" -- "$word"))
  case "$COMP_WORDBREAKS" in
    *:*) COMPREPLY=("\${COMPREPLY[@]#"\${word%"\${word##*:}"}"}") ;;
  esac
}
complete -o default -F _holdfast holdfast
`,
  zsh: () => `#compdef holdfast
# holdfast completion zsh > "\${fpath[1]}/_holdfast"
_holdfast() {
  local end=\${words[(i)--]}
  if (( end < CURRENT )); then
    shift $end words
    (( CURRENT -= end ))
    _normal
    return
  fi
  if (( CURRENT == 2 )); then
    compadd -- ${commands.join(' ')} help --version
    return
  fi
  case "\${words[2]} \${words[CURRENT-1]}" in
${forEachValue((when, values) => `    ${when}) compadd -- ${values} ;;`)}
${forEach([...commands, 'help'], (command) => {
  const names = takesName.includes(command) ? ` \${(f)"$(${NAMES})"}` : ''
  return `    '${command} '*) compadd -- ${wordsOf(command)}${names} ;;`
})}
  esac
}
_holdfast "$@"
`,
  fish: () => `# holdfast completion fish > ~/.config/fish/completions/holdfast.fish
function __holdfast_in
  set -l words (commandline -opc)
  test (count $words) -gt 1; and test $words[2] = $argv[1]; and not contains -- -- $words
end
complete -c holdfast -f
complete -c holdfast -n 'contains -- -- (commandline -opc)' -F -a '(__fish_complete_command)'
complete -c holdfast -n __fish_use_subcommand -a '${commands.join(' ')} help'
complete -c holdfast -n __fish_use_subcommand -l version
complete -c holdfast -n '__holdfast_in completion' -a '${shells.join(' ')}'
complete -c holdfast -n '__holdfast_in help' -a '${commands.join(' ')}'
${forEach(commands, (command) => {
  const inCommand = `complete -c holdfast -n '__holdfast_in ${command}'`
  const options = (commandOptions[command] ?? []).map((option) => {
    const { values } = optionValues.find((each) => each.command === command && each.option === option) ?? {}
    return `${inCommand} -l ${option.slice(2)}${values === undefined ? '' : ` -x -a '${values.join(' ')}'`}`
  })
  const names = `${inCommand} -a "(${NAMES.replaceAll('"', '\\"')})"`
  return [...options, ...(takesName.includes(command) ? [names] : [])].join('\n')
})}
`,
}
