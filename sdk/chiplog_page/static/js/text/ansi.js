// Colours of terminals in printed lines: SGR codes become classes. All other control sequences are left out.

// CSI … final byte; OSC … BEL or ST; other escapes of two bytes.
// eslint-disable-next-line no-control-regex
const SEQUENCE = /\x1b\[([0-9;:]*)([@-~])|\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]/g;
const COLORS = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];
const PIECES_MAX = 500; // of one line; the rest keeps the last colour

/** Return [{text, classes}] of a line; `classes` is "" for plain text. */
export function ansiPieces(line) {
  if (!line.includes("\x1b")) return [{ text: clean(line), classes: "" }];
  const pieces = [];
  const style = { color: null, isBold: false, isFaint: false, isItalic: false, isUnderlined: false };
  let from = 0;
  const add = (text) => {
    if (text) pieces.push({ text: clean(text), classes: classesOf(style) });
  };
  for (const match of line.matchAll(SEQUENCE)) {
    add(line.slice(from, match.index));
    from = match.index + match[0].length;
    if (match[2] === "m") apply(style, match[1]);
    if (pieces.length >= PIECES_MAX) break;
  }
  add(line.slice(from).replace(SEQUENCE, ""));
  return pieces;
}

function apply(style, text) {
  const codes = text.split(";").map((code) => Number(code.split(":")[0] || 0));
  for (let at = 0; at < codes.length; at++) {
    const code = codes[at];
    if (code === 0) Object.assign(style, { color: null, isBold: false, isFaint: false, isItalic: false, isUnderlined: false });
    else if (code === 1) style.isBold = true;
    else if (code === 2) style.isFaint = true;
    else if (code === 3) style.isItalic = true;
    else if (code === 4) style.isUnderlined = true;
    else if (code === 22) style.isBold = style.isFaint = false;
    else if (code === 23) style.isItalic = false;
    else if (code === 24) style.isUnderlined = false;
    else if (code >= 30 && code <= 37) style.color = COLORS[code - 30];
    else if (code >= 90 && code <= 97) style.color = COLORS[code - 90];
    else if (code === 39) style.color = null;
    else if (code === 38 || code === 48) {
      // 38;5;N or 38;2;R;G;B: the first 16 of 256 colours have names, the others stay plain.
      const isNamed = code === 38 && codes[at + 1] === 5 && codes[at + 2] < 16;
      if (code === 38) style.color = isNamed ? COLORS[codes[at + 2] % 8] : null;
      at += codes[at + 1] === 5 ? 2 : codes[at + 1] === 2 ? 4 : 0;
    }
  }
}

function classesOf({ color, isBold, isFaint, isItalic, isUnderlined }) {
  return [
    color && `ansi-${color}`,
    isBold && "ansi-bold",
    isFaint && "ansi-faint",
    isItalic && "ansi-italic",
    isUnderlined && "ansi-underlined",
  ].filter(Boolean).join(" ");
}

/** Return a text without control characters, except tabs. */
function clean(text) {
  // eslint-disable-next-line no-control-regex
  return text.replace(/[\x00-\x08\x0a-\x1f\x7f]/g, "");
}
