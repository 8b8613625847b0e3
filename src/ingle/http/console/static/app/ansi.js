// Text of programs as lines of styled spans: colours of a terminal, and progress bars as one line.
// Nothing here makes HTML: every text becomes a text node.
import { html } from "./lib.js";

const ESCAPE = /\x1b(?:\[([0-9;:]*)([@-~])|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])/g;
const CONTROL = /[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u202a-\u202e\u2066-\u2069]/g;
const NAMES = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];

/** Apply carriage returns and backspaces, as a terminal does, and return the lines that remain. */
export function lines(text) {
  return text.replace(/\r+\n/g, "\n").split("\n").map((line) => {
    if (line.includes("\r")) {
      const parts = line.split("\r").filter((part) => part.replace(ESCAPE, "") !== "");
      line = parts.length ? parts[parts.length - 1] : "";
    }
    while (line.includes("\b")) {
      const shorter = line.replace(/[^\b]\x08/, "");
      if (shorter === line) break;
      line = shorter;
    }
    return line;
  });
}

function color(codes, at) {
  if (codes[at] === 5) return [xterm(codes[at + 1]), at + 1];
  if (codes[at] === 2) return [`rgb(${codes.slice(at + 1, at + 4).map((each) => each & 255).join(",")})`, at + 3];
  return [null, at];
}

function xterm(number) {
  if (!(number >= 0 && number < 256)) return null;
  if (number < 16) return `var(--ansi-${NAMES[number % 8]})`;
  if (number >= 232) { const level = 8 + (number - 232) * 10; return `rgb(${level},${level},${level})`; }
  const level = (step) => (step ? 55 + step * 40 : 0);
  const rest = number - 16;
  return `rgb(${level(Math.floor(rest / 36))},${level(Math.floor(rest / 6) % 6)},${level(rest % 6)})`;
}

function changed(style, codes) {
  style = { ...style };
  for (let at = 0; at < codes.length; at += 1) {
    const code = codes[at];
    if (code === 0) style = {};
    else if (code === 1) style.fontWeight = "600";
    else if (code === 2) style.opacity = "0.7";
    else if (code === 3) style.fontStyle = "italic";
    else if (code === 4) style.textDecoration = "underline";
    else if (code === 22) { delete style.fontWeight; delete style.opacity; }
    else if (code === 23) delete style.fontStyle;
    else if (code === 24) delete style.textDecoration;
    else if (code === 39) delete style.color;
    else if (code === 49) delete style.backgroundColor;
    else if (code === 38) { const [value, end] = color(codes, at + 1); at = end; if (value) style.color = value; }
    else if (code === 48) { const [value, end] = color(codes, at + 1); at = end; if (value) style.backgroundColor = value; }
    else if ((code >= 30 && code < 38) || (code >= 90 && code < 98)) style.color = `var(--ansi-${NAMES[code % 10]})`;
    else if ((code >= 40 && code < 48) || (code >= 100 && code < 108)) style.backgroundColor = `var(--ansi-${NAMES[code % 10]})`;
  }
  return style;
}

const clean = (text) => text.replace(CONTROL, "\ufffd");

/** Return lines as virtual nodes. The style goes on from line to line. */
export function styled(texts) {
  let style = {};
  const out = [];
  for (const text of texts) {
    if (!text.includes("\x1b")) {
      out.push(Object.keys(style).length ? html`<span style=${style}>${clean(text)}</span>` : clean(text), "\n");
      continue;
    }
    let from = 0;
    for (const found of text.matchAll(ESCAPE)) {
      const before = text.slice(from, found.index);
      if (before) out.push(html`<span style=${style}>${clean(before)}</span>`);
      if (found[2] === "m") style = changed(style, (found[1] || "0").split(/[;:]/).map(Number));
      from = found.index + found[0].length;
    }
    out.push(html`<span style=${style}>${clean(text.slice(from))}</span>`, "\n");
  }
  out.pop();
  return out;
}

/** Return text without the codes of a terminal. */
export const plain = (text) => clean(lines(text).join("\n").replace(ESCAPE, ""));
