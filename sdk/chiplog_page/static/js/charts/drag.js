// A canvas of cells, on which a click chooses, and a drag spans a range, or a box.

import { h } from "../dom.js";

const CLICK_PX = 5; // a shorter drag is a click

/**
 * Listen to a canvas. Positions are pixels from its left and upper edge.
 * @param {HTMLCanvasElement} canvas
 * @param {{left: number, height: function(): number, cellAt: function(x, y): ?Object, onPoint: function(cell),
 *   onClick: function(cell), onSpan: function(from, to), onBox: function({x, y})}} options left: where the picture begins;
 *   cellAt: what is at a position, null for nothing; onPoint: called when the pointer enters a cell, with null when it
 *   leaves them; onBox, in place of onSpan: both directions count; x, y: [from, to], null if the drag was short in this
 *   direction
 * @returns {Element} what shows the range, to be put beside the canvas
 */
export function dragRange(canvas, { left, height, cellAt, onPoint, onClick, onSpan, onBox }) {
  const brush = h("div", { class: "heat-brush", hidden: true });
  let pressed = null;
  let pointed = null; // the cell under the pointer
  const point = (cell) => {
    if (!isSame(cell, pointed)) onPoint((pointed = cell));
  };
  const end = () => {
    pressed = null;
    brush.hidden = true;
  };
  const spanned = (from, to, least, most) => {
    const ends = [Math.min(from, to), Math.max(from, to)].map((at) => Math.min(Math.max(at, least), most));
    return Math.abs(to - from) < CLICK_PX || ends[0] === ends[1] ? null : ends;
  };
  const boxTo = (event) => ({
    x: spanned(pressed.x, event.offsetX, left, canvas.clientWidth),
    y: onBox ? spanned(pressed.y, event.offsetY, 0, height()) : null,
  });
  canvas.addEventListener("pointermove", (event) => {
    if (pressed) {
      const { x, y } = boxTo(event);
      const [[fromX, toX], [fromY, toY]] = [x ?? [left, canvas.clientWidth], y ?? [0, height()]];
      const style = { left: fromX, width: toX - fromX, top: fromY, height: toY - fromY };
      brush.hidden = !x && !y;
      for (const [name, px] of Object.entries(style)) brush.style[name] = `${px}px`;
    }
    point(cellAt(event.offsetX, event.offsetY));
  });
  canvas.addEventListener("pointerleave", () => pressed || point(null));
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    pressed = { x: event.offsetX, y: event.offsetY };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointerup", (event) => {
    if (!pressed) return;
    const box = boxTo(event);
    end();
    if (!box.x && !box.y) {
      const cell = cellAt(event.offsetX, event.offsetY);
      if (cell) onClick(cell);
    } else if (onBox) {
      onBox(box);
    } else {
      onSpan(...box.x);
    }
  });
  canvas.addEventListener("pointercancel", end);
  return brush;
}

function isSame(a, b) {
  return a && b ? Object.keys(a).every((name) => a[name] === b[name]) : a === b;
}
