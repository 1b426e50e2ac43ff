export { createDashboard, type Dashboard } from './dashboard.ts'
export { type NodeHandler, type NodeRequest, type NodeResponse, toNodeHandler } from './node-handler.ts'
export type { Authorize, DashboardOptions, DashboardStore, DashboardUser } from './options.ts'
