/** Puts spans into as few lanes as possible. No two of a lane overlap. A span takes the first lane that fits. */
export function lanesOf<T>(spans: readonly T[], sizeOf: (span: T) => { begin: number; end: number }): T[][] {
  const lanes: { members: T[]; end: number }[] = []
  for (const { span, begin, end } of spans
    .map((each) => ({ span: each, ...sizeOf(each) }))
    .sort((a, b) => a.begin - b.begin)) {
    const lane = lanes.find((each) => each.end <= begin)
    if (lane === undefined) lanes.push({ members: [span], end })
    else {
      lane.members.push(span)
      lane.end = end
    }
  }
  return lanes.map(({ members }) => members)
}
