/**
 * What the browser loads. The build replaces this file by one with the texts: a bundle of an application has no files
 * beside it. Run from its sources, the dashboard has no page.
 */
export const assets: Assets = { script: '', style: '', icon: '' }

export interface Assets {
  readonly script: string
  readonly style: string
  readonly icon: string
}
