import { UsageError } from './exit-codes.ts'
import { commandOptions, takesName } from './options.ts'

/** Prints a script that completes commands, options and the names of held locks. */
export async function main([shell, ...more]: readonly string[]): Promise<number> {
  const script = shell !== undefined && Object.hasOwn(scripts, shell) ? scripts[shell] : undefined
  if (script === undefined || more.length > 0) throw new UsageError('completion needs one shell: bash, zsh or fish')
  process.stdout.write(script())
  return 0
}

const commands = Object.keys(commandOptions)

/** Names may contain anything: one that a shell would split or act on is left out. */
const NAMES = `holdfast ls --json 2>/dev/null | sed -n 's/.*"lockName":"\\([A-Za-z0-9:_./-]*\\)".*/\\1/p' | sort -u`

const scripts: Record<string, () => string> = {
  bash: () => `# holdfast completion bash > /etc/bash_completion.d/holdfast
_holdfast() {
  local word=\${COMP_WORDS[COMP_CWORD]} command=\${COMP_WORDS[1]}
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "${commands.join(' ')} help --version" -- "$word"))
    return
  fi
  case "$command" in
${commands
  .map((command) => {
    const words = [...(commandOptions[command] ?? []), ...(takesName.includes(command) ? [`$(${NAMES})`] : [])]
    return `    ${command}) COMPREPLY=($(compgen -W "${words.join(' ')}" -- "$word")) ;;`
  })
  .join('\n')}
  esac
}
complete -o default -F _holdfast holdfast
`,
  zsh: () => `#compdef holdfast
# holdfast completion zsh > "\${fpath[1]}/_holdfast"
_holdfast() {
  if (( CURRENT == 2 )); then
    compadd -- ${commands.join(' ')} help --version
    return
  fi
  case "\${words[2]}" in
${commands
  .map((command) => {
    const names = takesName.includes(command) ? `; compadd -- \${(f)"$(${NAMES})"}` : ''
    return `    ${command}) compadd -- ${(commandOptions[command] ?? []).join(' ')}${names}; _files ;;`
  })
  .join('\n')}
  esac
}
_holdfast "$@"
`,
  fish: () => `# holdfast completion fish > ~/.config/fish/completions/holdfast.fish
${commands.map((command) => `complete -c holdfast -n __fish_use_subcommand -f -a ${command}`).join('\n')}
${commands
  .flatMap((command) => {
    const inCommand = `complete -c holdfast -n '__fish_seen_subcommand_from ${command}'`
    const options = (commandOptions[command] ?? []).map((option) => `${inCommand} -l ${option.slice(2)}`)
    return takesName.includes(command) ? [...options, `${inCommand} -a "(${NAMES.replaceAll('"', '\\"')})"`] : options
  })
  .join('\n')}
`,
}
