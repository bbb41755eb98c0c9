// Elements without markup: every text becomes a text node, so nothing that a run contains can become code.

/**
 * Return a new element.
 * @param {string} tag
 * @param {Object} attributes "class", "on…" handlers, true and false for boolean attributes, else texts. `ref` is called
 *   with the element.
 * @param {...(Node|string|number|null|Array)} children null and false are left out.
 */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  fill(element, attributes, children);
  return element;
}

/** Return a new SVG element. */
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  fill(element, attributes, children);
  return element;
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "ref") value(element);
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
}

function append(element, children) {
  for (const child of children) {
    if (Array.isArray(child)) append(element, child);
    else if (child instanceof Node) element.append(child);
    else if (child !== null && child !== undefined && child !== false) element.append(withVisibleDirections(String(child)));
  }
}

const DIRECTIONS = /[\u202a-\u202e\u2066-\u2069]/g;

/** Return a text whose controls of direction are visible: an open one would reorder the words after the text. */
function withVisibleDirections(text) {
  return text.replace(DIRECTIONS, (found) => `[U+${found.codePointAt(0).toString(16).toUpperCase()}]`);
}

/** Replace the children of an element. */
export function show(element, ...children) {
  element.replaceChildren();
  append(element, children);
}

/** Show a message at the bottom of the page; an empty text clears it. */
export function notice(text, isError = false) {
  const line = document.getElementById("notice");
  line.textContent = withVisibleDirections(text);
  line.classList.toggle("error", isError);
}
