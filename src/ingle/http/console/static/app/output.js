// Outputs of cells: text folded to its ends, pictures, tables, HTML in a frame of its own, errors at the user's line.
import { html, useEffect, useRef, useState } from "./lib.js";
import { base, files, sessionPath } from "./api.js";
import { lines, plain, styled } from "./ansi.js";
import { Markdown } from "./markdown.js";
import { plural } from "./format.js";
import { theme } from "./theme.js";

const HEAD_LINES = 30;
const TAIL_LINES = 20;
const LINE_CHARS = 2000;
const MAX_FRAME_HEIGHT = 2000;

const shortLine = (line) => (line.length > LINE_CHARS ? `${line.slice(0, LINE_CHARS)} … ${plural(line.length - LINE_CHARS, "more character")}` : line);

/** Text of one stream. `dropped` characters between head and tail are not in the page any more. */
export function Text({ part, onMore }) {
  const [open, setOpen] = useState(false);
  const head = lines(part.head), tail = part.tail ? lines(part.tail) : [];
  const all = part.dropped ? null : lines(part.head + part.tail);
  const kind = `text ${part.stream === "stderr" ? "stderr" : ""}`;
  if (all && (open || all.length <= HEAD_LINES + TAIL_LINES + 5)) {
    return html`<div class="stream"><pre class=${kind}>${styled(trimmed(all).map(shortLine))}</pre>
      ${open && html`<button class="quiet" onClick=${() => setOpen(false)}>Fold</button>`}</div>`;
  }
  const first = (all || head).slice(0, HEAD_LINES);
  const last = trimmed((all || tail).slice(-TAIL_LINES - 1));
  const hidden = all ? plural(all.length - first.length - last.length, "line") : "the middle";
  return html`<div class="stream">
    <pre class=${kind}>${styled(first.map(shortLine))}</pre>
    <button class="fold" onClick=${() => (all ? setOpen(true) : onMore?.(first.length + 1))}>… ${hidden} folded: show …</button>
    <pre class=${kind}>${styled(last.map(shortLine))}</pre></div>`;
}

/** The last line end is no line. */
const trimmed = (texts) => (texts.length > 1 && texts[texts.length - 1] === "" ? texts.slice(0, -1) : texts);

/** HTML of a cell, in a frame with an origin of its own. The page takes nothing from it but a height. */
export function Frame({ source }) {
  const frame = useRef(null);
  const [height, setHeight] = useState(40);
  useEffect(() => {
    const take = (event) => {
      if (event.source !== frame.current?.contentWindow) return;
      if (event.data?.ready === true) {
        event.source.postMessage({ html: source, theme: theme.value }, "*");
      } else if (Number.isFinite(event.data?.height)) {
        setHeight(Math.min(MAX_FRAME_HEIGHT, Math.max(20, Number(event.data.height))));
      }
    };
    addEventListener("message", take);
    return () => removeEventListener("message", take);
  }, [source]);
  return html`<iframe ref=${frame} class="frame" sandbox="allow-scripts" title="Output of a cell" loading="lazy"
    referrerpolicy="no-referrer" height=${height} src=${`${files}/frame.html`}></iframe>`;
}

const PICTURES = ["image/png", "image/jpeg", "image/gif", "image/webp"];

function Picture({ type, data, about, session }) {
  const facts = about?.[type] || {};
  const source = type === "image/svg+xml" ? `data:image/svg+xml;charset=utf-8,${encodeURIComponent(data)}` : `data:${type};base64,${data}`;
  const image = html`<img class="picture" src=${source} alt="Picture made by the cell"
    width=${facts.width || undefined} style=${{ height: "auto" }} />`;
  const full = facts.full?.file;
  if (!full) return image;
  return html`<a href=${base + sessionPath(session, "figures", full)} target="_blank" rel="noopener" title="Open in full size">${image}</a>`;
}

/** A mime bundle, in the richest form that is safe to show. */
export function Bundle({ data, about, session }) {
  for (const type of [...PICTURES, "image/svg+xml"]) {
    if (data[type]) return html`<${Picture} type=${type} data=${data[type]} about=${about} session=${session} />`;
  }
  if (data["text/html"]) return html`<${Frame} source=${data["text/html"]} />`;
  if (data["text/markdown"]) return html`<${Markdown} text=${data["text/markdown"]} />`;
  if (data["application/json"]) return html`<pre class="text">${pretty(data["application/json"])}</pre>`;
  const text = data["text/plain"] ?? data["text/latex"] ?? Object.keys(data).join(", ");
  return html`<${Text} part=${{ stream: "stdout", head: text, tail: "", dropped: 0 }} />`;
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

const FRAME_LINE = /^\s*File ".*", line \d+/;
const USER_LINE = /^\s*File "<cell \d+>"/;

/** An error: its name, the user's last line, and all frames on demand. */
export function Failure({ error }) {
  const [open, setOpen] = useState(false);
  const text = plain(error.traceback || "").replace(/\n+$/, "");
  const rows = text.split("\n");
  const starts = rows.flatMap((row, number) => (FRAME_LINE.test(row) ? [number] : []));
  // The last frame of a cell says more than the library that it called.
  const from = starts.findLast((number) => USER_LINE.test(rows[number])) ?? starts[starts.length - 1] ?? Math.max(0, rows.length - 3);
  const to = starts.find((number) => number > from) ?? rows.length - 1;
  const last = rows.slice(from, to).join("\n");
  return html`<div class="failure" role="group" aria-label="Error">
    <div class="failure-name"><b>${plain(error.name)}</b>${error.value ? ": " : ""}<span>${plain(error.value).slice(0, 2000)}</span></div>
    ${(open ? text : last) && html`<pre class="text">${open ? text : last}</pre>`}
    ${(starts.length > 1 || open) && html`<button class="quiet" aria-expanded=${open} onClick=${() => setOpen(!open)}>
      ${open ? "Show your last line only" : `Show all ${plural(starts.length, "frame")}`}</button>`}
  </div>`;
}
