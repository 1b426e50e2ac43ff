// @ts-check
// The plans of the statements inside the functions, from auto_explain. The role must be allowed to load it.

/**
 * @typedef {{
 *   'Node Type'?: string, Operation?: string, 'Relation Name'?: string, 'Index Name'?: string,
 *   'Conflict Arbiter Indexes'?: string[], 'Actual Rows'?: number, 'Actual Loops'?: number,
 *   'Rows Removed by Filter'?: number, 'Rows Removed by Join Filter'?: number,
 *   'Shared Hit Blocks'?: number, 'Shared Read Blocks'?: number, Plans?: PlanNode[]
 * }} PlanNode a node of EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)
 *
 * @typedef {{ text: string, plan: PlanNode }} Explained
 */

/**
 * @template T
 * @param {import('pg').Client} client
 * @param {() => Promise<T>} work on the client's own connection
 * @returns {Promise<{ plans: Explained[], result: T }>} of every statement that touched a table, in order
 */
export async function plansOf(client, work) {
  await client.query(`LOAD 'auto_explain';
    SET auto_explain.log_level = notice; SET auto_explain.log_nested_statements = on;
    SET auto_explain.log_analyze = on; SET auto_explain.log_buffers = on; SET auto_explain.log_format = json`)
  /** @type {Explained[]} */
  const plans = []
  /** @param {{ message?: string | undefined }} notice */
  const collect = ({ message = '' }) => {
    const json = /^duration: .* plan:\n(.*)$/s.exec(message)?.[1]
    if (json === undefined) return
    const { 'Query Text': text, Plan: plan } = JSON.parse(json)
    if (nodesOf(plan).some((node) => node['Relation Name'])) plans.push({ text, plan })
  }
  client.on('notice', collect)
  try {
    // One call in eight sweeps. With this seed the next one does not. The sweep is measured separately.
    await client.query('SELECT setseed(0.5)')
    await client.query('SET auto_explain.log_min_duration = 0')
    const result = await work()
    await client.query('SET auto_explain.log_min_duration = -1')
    return { plans, result }
  } finally {
    client.off('notice', collect)
  }
}

/**
 * @param {PlanNode} plan
 * @returns {PlanNode[]}
 */
export const nodesOf = (plan) => [plan, ...(plan.Plans ?? []).flatMap(nodesOf)]

/** @param {PlanNode} plan */
export const buffersOf = (plan) => (plan['Shared Hit Blocks'] ?? 0) + (plan['Shared Read Blocks'] ?? 0)

/**
 * @param {PlanNode} node
 * @returns {string} one line for each node that does something to a table
 */
export function treeOf(node, depth = 0) {
  const type = node['Node Type'] === 'ModifyTable' ? node['Operation'] : node['Node Type']
  const index = node['Index Name'] ? ` using ${node['Index Name']}` : ''
  const table = node['Relation Name'] ? ` on ${node['Relation Name']}` : ''
  const arbiter = node['Conflict Arbiter Indexes'] ? `, conflicts by ${node['Conflict Arbiter Indexes'].join()}` : ''
  const rows = (node['Actual Rows'] ?? 0) * (node['Actual Loops'] ?? 0)
  const line = `${'  '.repeat(depth)}${type}${index}${table}${arbiter} (${rows} rows)\n`
  return line + (node.Plans ?? []).map((each) => treeOf(each, depth + 1)).join('')
}
