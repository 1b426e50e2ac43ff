import { execFile } from 'node:child_process'
import { promisify } from 'node:util'

const DEBIAN_PYTHON = '/usr/bin/python3'

/** The interpreter of the Python tests. */
export const python = process.env['HOLDFAST_TEST_PYTHON'] || DEBIAN_PYTHON

/** What the Python tests import, and the Debian package that has it. */
const DEBIAN_PACKAGES = {
  asyncpg: 'python3-asyncpg',
  build: 'python3-build',
  celery: 'python3-celery',
  greenlet: 'python3-greenlet',
  django: 'python3-django',
  fastapi: 'python3-fastapi',
  httpx: 'python3-httpx',
  hypothesis: 'python3-hypothesis',
  mypy: 'mypy',
  prometheus_client: 'python3-prometheus-client',
  psycopg: 'python3-psycopg',
  psycopg2: 'python3-psycopg2',
  psycopg_pool: 'python3-psycopg-pool',
  pytest: 'python3-pytest',
  pytest_asyncio: 'python3-pytest-asyncio',
  pytest_timeout: 'python3-pytest-timeout',
  redis: 'python3-redis',
  setuptools: 'python3-setuptools',
  sqlalchemy: 'python3-sqlalchemy',
  wheel: 'python3-wheel',
} as const

type Module = keyof typeof DEBIAN_PACKAGES

/** The Debian packages that the interpreter lacks. None if it is not Debian's own: apt would not help it. */
export async function missingPythonPackages(): Promise<string[]> {
  return python === DEBIAN_PYTHON ? (await missingModules()).map((name) => DEBIAN_PACKAGES[name]) : []
}

/** Throws an error that says what to install, if something is missing. */
export async function assertPython(): Promise<void> {
  const missing = await missingModules()
  if (missing.length === 0) return
  const packages = missing.map((name) => DEBIAN_PACKAGES[name]).join(' ')
  throw new Error(
    `${python} cannot import ${missing.join(', ')}: install them (Debian and Ubuntu: apt-get install ${packages}), ` +
      "or set HOLDFAST_TEST_PYTHON to an interpreter with what `pip install './python[test]'` installs",
  )
}

async function missingModules(): Promise<Module[]> {
  const names = Object.keys(DEBIAN_PACKAGES) as Module[]
  const look = 'import importlib.util, sys; print(*(n for n in sys.argv[1:] if importlib.util.find_spec(n) is None))'
  try {
    // Not in the repository, where a folder of the name `build` would count as the module.
    const { stdout } = await promisify(execFile)(python, ['-c', look, ...names], { cwd: '/', timeout: 30_000 })
    const missing = stdout.trim().split(' ')
    return names.filter((name) => missing.includes(name))
  } catch {
    return names // There is no such interpreter.
  }
}
