import type { Driver } from '../../dist/index.js'
export function serveInThread(): Promise<{ port: number; stop(): Promise<number> }>
export function openRemoteMemory(port: number): Promise<Driver>
