// One cell of the transcript: who ran it, its code, what came of it, and the answer it waits for.
import { html, useEffect, useRef, useState } from "./lib.js";
import { attempt, get, mayAct, post, query, sessionPath } from "./api.js";
import { Approval, Called } from "./approvals.js";
import { Code } from "./code.js";
import { Bundle, Failure, Text } from "./output.js";
import { Markdown } from "./markdown.js";
import { plain, styled } from "./ansi.js";
import { age, byWhom, bytes, clock, duration, moment, now } from "./format.js";

const LINES = 400;

const WORDS = {
  ok: "", error: "failed", interrupted: "interrupted", exit: "exited", running: "running",
  waiting_for_input: "waiting for you", waiting_for_approval: "waiting for approval",
};

function Elapsed({ cell }) {
  if (!cell.running) return cell.seconds === null ? null : html`<span title="Time it took">${duration(cell.seconds)}</span>`;
  return html`<span>${cell.started ? duration(Math.max(0, Math.floor(now.value - cell.started))) : ""}</span>`;
}

/** The answer to `input()` or `getpass`, typed where it is asked. */
export function Answer({ session, prompt, secret, shown = false, label = "" }) {
  const field = useRef(null);
  const [busy, setBusy] = useState(false);
  const send = async (event, eof = false) => {
    event.preventDefault();
    setBusy(true);
    await attempt(() => post(sessionPath(session, "input"), { text: eof ? "" : field.current.value, eof, wait: 0 }));
    if (field.current) field.current.value = "";
    setBusy(false);
  };
  return html`<form class="answer" onSubmit=${send}>
    <label>${label}<span class=${shown ? "hidden" : "prompt"}>${plain(prompt || "") || "The cell asks for input:"}</span>
      <input ref=${field} type=${secret ? "password" : "text"} autocomplete="off" spellcheck="false" disabled=${busy || !mayAct()} /></label>
    ${mayAct() && html`<button class="primary" disabled=${busy}>Answer</button>
      <button type="button" class="quiet" title="End of input, as Ctrl-D" onClick=${(event) => send(event, true)}>End</button>`}
  </form>`;
}

/** The lines between the ends of a long output, a page at a time. */
function More({ session, cell, stream, from, close }) {
  const [page, setPage] = useState(null);
  const [first, setFirst] = useState(from);
  useEffect(() => {
    attempt(() => get(query(sessionPath(session, "cells", cell.number, "output"), { stream, from_line: first, lines: LINES, raw: true })))
      .then((found) => found && setPage(found));
  }, [first]);
  if (!page) return html`<p class="muted">Loading…</p>`;
  return html`<div class="more-lines" role="region" aria-label="Lines of the output" tabindex="0">
    <pre class="text numbered">${page.lines.map((line) => html`<span class="number">${line.number}</span>${styled([line.text])}${"\n"}`)}</pre>
    <p><button disabled=${first <= 1} onClick=${() => setFirst(Math.max(1, first - LINES))}>Earlier</button>${" "}
      <button disabled=${!page.next_line} onClick=${() => setFirst(page.next_line)}>Later</button>${" "}
      <button class="quiet" onClick=${close}>Close</button></p></div>`;
}

function Files({ changes }) {
  if (!changes) return null;
  const named = [["created", "+"], ["changed", "~"], ["deleted", "−"]].flatMap(([kind, sign]) => (changes[kind] || []).map((name) => [sign, name]));
  if (!named.length) return null;
  return html`<p class="effects" title="Files that this cell created, changed or deleted">${named.slice(0, 8).map(([sign, name]) =>
    html`<span>${sign} ${plain(name)}</span>`)}${named.length > 8 ? html`<span>and ${named.length - 8} more</span>` : ""}</p>`;
}

function Part({ part, session, onMore }) {
  if (part.kind === "call") return html`<${Called} call=${part.call} />`;
  if (part.kind === "answer") return html`<p class="answered">answered by <b>${byWhom(part.author)}</b></p>`;
  if (part.kind === "text") return html`<${Text} part=${part} onMore=${(from) => onMore({ stream: part.stream, from })} />`;
  return html`<${Bundle} data=${part.data} about=${part.about} session=${session} />`;
}

/** Texts that people and notebooks have put between the cells. */
const Notes = ({ notes }) => notes.map((note) => html`<div class="note" title=${note.author ? `Written by ${byWhom(note.author)}` : ""}><${Markdown} text=${note.text} /></div>`);

/** When the cell began. Only this is drawn again each second. */
function Began({ time }) {
  return html`<time title=${moment(time)}>${now.value - time < 3600 ? age(time) : clock(time)}</time>`;
}

export function CellView({ timeline, cell, selected }) {
  cell.version.value;
  const [more, setMore] = useState(null);
  const place = useRef(null);
  useEffect(() => {
    if (cell.loaded) return;
    const observer = new IntersectionObserver(([seen]) => { if (seen.isIntersecting) { timeline.want(cell); observer.disconnect(); } }, { rootMargin: "400px" });
    observer.observe(place.current);
    return () => observer.disconnect();
  }, [cell]);
  const words = WORDS[cell.status] ?? cell.status;
  // The result of a cell repeats what happened before it. The page has that where it happened, if it has that cell.
  const previous = timeline.cells.get(cell.number - 1);
  previous?.version.value;
  const notices = cell.notices.filter((notice) => !previous?.later.includes(notice));
  const asked = cell.running ? timeline.approvals.value.filter((each) => each.cell === cell.number) : [];
  return html`<${Notes} notes=${cell.before} /><article class="cell ${cell.status} ${selected ? "selected" : ""}" ref=${place} id=${`cell-${cell.number}`} aria-label=${`Cell ${cell.number}`}>
    <header>
      <span class="number" title=${cell.started ? moment(cell.started) : ""}>${cell.number}</span>
      ${cell.author && html`<span class="author" title=${`Run by ${cell.author.name} via ${cell.author.via}`}>${byWhom(cell.author)}</span>`}
      ${words && html`<span class="badge ${cell.status}">${words}</span>`}
      ${cell.interrupter && html`<span>by <b>${byWhom(cell.interrupter)}</b></span>`}
      <span class="spacer"></span>
      ${cell.memory ? html`<span title="Change of memory">${cell.memory > 0 ? "+" : "−"}${bytes(Math.abs(cell.memory))}</span>` : ""}
      <${Elapsed} cell=${cell} />
      ${cell.started && html`<${Began} time=${cell.started} />`}
    </header>
    <${Code} code=${cell.code} />
    ${cell.left > 0 && html`<p class="muted">${cell.left} earlier outputs of this cell are not shown.</p>`}
    ${cell.parts.map((part, at) => html`<div class="part ${part.background ? "background" : ""}" key=${at}>
      ${part.background && html`<p class="muted">Later, from the background:</p>`}
      <${Part} part=${part} session=${timeline.id} onMore=${setMore} /></div>`)}
    ${more && html`<${More} session=${timeline.id} cell=${cell} stream=${more.stream} from=${more.from} close=${() => setMore(null)} />`}
    ${cell.flooded && cell.running && html`<p class="muted">This cell prints very much. Its newest lines come once a second.</p>`}
    ${!cell.loaded && html`<p class="muted placeholder">…</p>`}
    ${cell.error && html`<${Failure} error=${cell.error} />`}
    ${cell.exit && html`<p class="failure">${plain(cell.exit.message || `the process ended: ${cell.exit.signal || `exit code ${cell.exit.code}`}`)}</p>`}
    ${cell.prompt !== null && cell.running && html`<${Answer} session=${timeline.id} prompt=${cell.prompt} secret=${cell.secret} shown=${cell.promptShown} />`}
    ${asked.map((each) => html`<${Approval} key=${each.id} session=${timeline.id} approval=${each} done=${() => timeline.askApprovals()} />`)}
    <${Files} changes=${cell.files} />
    ${notices.map((notice) => html`<p class="notice">${plain(notice)}</p>`)}
  </article>${cell.later.map((notice) => html`<p class="notice later">${plain(notice)}</p>`)}<${Notes} notes=${cell.notes} />`;
}
