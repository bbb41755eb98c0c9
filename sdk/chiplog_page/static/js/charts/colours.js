// The colours of the style sheet, which has the only list of them, as canvases take them.

import { h } from "../dom.js";
import { isDark } from "../theme.js";

export const SERIES = 16; // --series-1 … --series-16
const RAMP = ["--surface", "--heat-1", "--heat-2", "--heat-3", "--heat-4"]; // of cells, from the least value to the largest
const known = new Map(); // by theme and name
let probe = null;

/** Return the name of the colour at a place in the order of use: a class, and with two dashes in front a variable. */
export function seriesName(at) {
  return `series-${(at % SERIES) + 1}`;
}

/** Return what a variable of the style sheet is now: "rgb(31, 111, 208)". */
export function colourOf(name) {
  const key = `${isDark()} ${name}`;
  if (!known.has(key)) {
    probe ??= document.body.appendChild(h("i", { hidden: true }));
    probe.style.color = `var(${name})`;
    known.set(key, getComputedStyle(probe).color);
  }
  return known.get(key);
}

/** Return the colour of a class of what is drawn over an image. */
export function classColour(id) {
  return `hsl(${Math.round((id * 137.508) % 360)} 85% 55%)`; // the golden angle: neighbours differ
}

/** Return a colour with a share of its opacity. */
export function faint(colour, share) {
  return `rgb(${channelsOf(colour).join(" ")} / ${share})`;
}

/** Return the colour of a cell without a value as [red, green, blue]. */
export function noDataColour() {
  return channelsOf(colourOf("--no-data"));
}

/** Return a function of the colour of a cell as [red, green, blue], at a share from 0 to 1. */
export function cellColours() {
  const ramp = RAMP.map((name) => channelsOf(colourOf(name)));
  return (share) => {
    const place = Math.min(Math.max(share, 0), 1) * (ramp.length - 1);
    const at = Math.min(Math.floor(place), ramp.length - 2);
    return ramp[at].map((from, channel) => Math.round(from + (ramp[at + 1][channel] - from) * (place - at)));
  };
}

function channelsOf(colour) {
  return colour.match(/\d+/g).slice(0, 3).map(Number);
}
