// A canvas on which a click chooses and a horizontal drag spans a range.

import { h } from "../../dom.js";

const CLICK_PX = 5; // a shorter drag is a click

/**
 * Listen to a canvas. Positions are pixels from its left edge.
 * @param {HTMLCanvasElement} canvas
 * @param {{left: number, height: function(): number, onPoint: function(event), onClick: function(event),
 *   onSpan: function(from, to)}} options left: where the picture begins; onPoint: with null when the pointer leaves
 * @returns {Element} what shows the range, to be put beside the canvas
 */
export function dragRange(canvas, { left, height, onPoint, onClick, onSpan }) {
  const brush = h("div", { class: "heat-brush", hidden: true });
  let pressed = null;
  const end = () => {
    pressed = null;
    brush.hidden = true;
  };
  canvas.addEventListener("pointermove", (event) => {
    if (pressed !== null) {
      const from = Math.max(Math.min(pressed, event.offsetX), left);
      brush.hidden = Math.abs(event.offsetX - pressed) < CLICK_PX;
      brush.style.left = `${from}px`;
      brush.style.width = `${Math.max(0, Math.max(pressed, event.offsetX) - from)}px`;
      brush.style.height = `${height()}px`;
    }
    onPoint(event);
  });
  canvas.addEventListener("pointerleave", () => pressed === null && onPoint(null));
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    pressed = event.offsetX;
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointerup", (event) => {
    const from = pressed;
    end();
    if (from === null) return;
    if (Math.abs(event.offsetX - from) < CLICK_PX) onClick(event);
    else onSpan(Math.max(Math.min(from, event.offsetX), left), Math.max(from, event.offsetX, left));
  });
  canvas.addEventListener("pointercancel", end);
  return brush;
}
