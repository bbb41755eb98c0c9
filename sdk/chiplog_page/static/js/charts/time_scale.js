// A scale of seconds on which long times without any bar are cut short: after a restart an hour may have none.

const CUT_SHARE = 0.2; // of the time with bars: a longer gap is cut …
const CUT_LENGTH = 0.05; // … to this share

/**
 * Return a scale for bars with `begun` and `seconds`, and with `idle`, seconds in no phase at their start.
 * @returns {{length: number, parts: Array, toLength: function(seconds): number, toSeconds: function(length): number}}
 *   parts: {from, to, start, length, isCut}, in seconds, and in the seconds that are drawn
 */
export function timeScale(bars) {
  const busy = [];
  const times = bars.map(({ begun, seconds, idle = 0 }) => ({ from: begun + idle, to: begun + seconds }));
  for (const { from, to } of times.sort((a, b) => a.from - b.from)) {
    const last = busy.at(-1);
    if (last && from <= last.to) last.to = Math.max(last.to, to);
    else busy.push({ from, to });
  }
  const total = busy.reduce((sum, { from, to }) => sum + to - from, 0) || 1;
  const parts = [];
  const add = (from, to, isCut) => {
    const before = parts.at(-1);
    const start = before ? before.start + before.length : 0;
    parts.push({ from, to, start, length: isCut ? CUT_LENGTH * total : to - from, isCut });
  };
  let from = 0;
  busy.forEach(({ to }, at) => {
    const next = busy[at + 1]?.from;
    if (next !== undefined && next - to <= CUT_SHARE * total) return;
    add(from, to, false);
    if (next !== undefined) add(to, next, true);
    from = next;
  });
  if (!parts.length) add(0, 1, false);
  const { start, length } = parts.at(-1);
  return {
    length: start + length,
    parts,
    toLength(seconds) {
      const part = parts.find(({ to }) => seconds <= to) ?? parts.at(-1);
      return part.start + (seconds - part.from) * (part.length / (part.to - part.from || 1));
    },
    toSeconds(at) {
      const part = parts.find((one) => at <= one.start + one.length) ?? parts.at(-1);
      return part.from + (at - part.start) * ((part.to - part.from) / (part.length || 1));
    },
  };
}
