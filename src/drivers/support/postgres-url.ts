import { InvalidArgumentError } from '../../core/errors.ts'

export interface UrlOptions {
  readonly schema?: string
  readonly durability?: 'crash-safe' | 'relaxed'
  readonly migrate?: boolean
}

/** Takes our own parameters out of a URL; everything else is the client's. */
export function postgresUrl(url: string): { clientUrl: string; options: UrlOptions } {
  const parsed = parse(url)
  const taken = (name: string): string | undefined => {
    const value = parsed.searchParams.get(`holdfast_${name}`) ?? undefined
    parsed.searchParams.delete(`holdfast_${name}`)
    return value
  }
  const schema = taken('schema')
  const durability = taken('durability')
  const migrate = taken('migrate')
  const unknown = [...parsed.searchParams.keys()].find((name) => name.startsWith('holdfast_'))
  if (unknown !== undefined)
    throw new InvalidArgumentError('url', unknown, 'without parameters of ours that do not exist')
  if (migrate !== undefined && migrate !== 'true' && migrate !== 'false') {
    throw new InvalidArgumentError('holdfast_migrate', migrate, 'true or false')
  }
  const options = {
    ...(schema !== undefined && { schema }),
    // Checked where a caller's own options are, too.
    ...(durability !== undefined && { durability: durability as 'crash-safe' | 'relaxed' }),
    ...(migrate !== undefined && { migrate: migrate === 'true' }),
  }
  return { clientUrl: parsed.href, options }
}

function parse(url: string): URL {
  try {
    // The client knows nothing of the word behind the plus sign, which picks our driver.
    return new URL(url.replace(/^(postgres(?:ql)?)\+advisory:/, '$1:'))
  } catch {
    throw new InvalidArgumentError('url', 'something else', 'a URL such as postgres://user:password@host:5432/database')
  }
}
