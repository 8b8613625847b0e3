// All sessions: those that wait for a person on top, each with what it does, its memory and its CPU now.
import { html, useEffect, useRef, useState } from "./lib.js";
import { attempt, mayAct, post, path } from "./api.js";
import { Approval } from "./approvals.js";
import { Answer } from "./cell.js";
import { ask } from "./dialog.js";
import { age, byWhom, bytes, moment, percent, plural } from "./format.js";
import { connected, isWaiting, known, sessions, title } from "./overview.js";
import { go, Link } from "./router.js";
import { State, stateOf } from "./words.js";

const COLUMNS = [
  { key: "state", name: "State", value: (row) => stateOf(row.state).order },
  { key: "name", name: "Session", value: (row) => row.session_id },
  { key: "code", name: "Last cell", value: (row) => row.code || "" },
  { key: "cells", name: "Cells", value: (row) => -row.cells, number: true },
  { key: "cpu", name: "CPU", value: (row) => -(row.cpu ?? -1), number: true },
  { key: "memory", name: "Memory", value: (row) => -(row.memory ?? -1), number: true },
  { key: "since", name: "Used", value: (row) => -(row.since || row.created_at), number: true },
];

const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);

function sorted(rows, by, reverse) {
  const { value } = COLUMNS.find((column) => column.key === by);
  const sign = reverse ? -1 : 1;
  return rows.sort((a, b) => isWaiting(b) - isWaiting(a) || sign * compare(value(a), value(b)) || compare(a.session_id, b.session_id));
}

function Memory({ row }) {
  if (row.memory === undefined || row.memory === null) return null;
  const share = row.memory_limit ? Math.min(1, row.memory / row.memory_limit) : null;
  return html`<span title=${share === null ? "" : `${percent(share)} of ${bytes(row.memory_limit)}`}>${bytes(row.memory)}</span>
    ${share !== null && html`<meter min="0" max="1" high="0.8" optimum="0" value=${share} aria-label="Share of the memory limit"></meter>`}`;
}

function Row({ row }) {
  const ended = row.status === "exit" && row.state === "idle";
  const why = row.state === "dead" || row.state === "hibernated" || ended ? row.notice : "";
  return html`<tr class=${stateOf(row.state).kind}>
    <td class="c-state"><${State} state=${row.state} since=${row.since} trial=${row.trial} /></td>
    <th scope="row" class="c-name"><${Link} to=${`/sessions/${encodeURIComponent(row.session_id)}`}>${row.session_id}<//>
      ${row.durable && html`<span class="tag" title="Saved after each cell, and back after a restart">durable</span>`}
      ${row.parent && html`<span class="tag" title="Forked from this session">copy of ${row.parent}</span>`}</th>
    <td class="c-code"><code>${row.code || ""}</code>
      ${row.status === "error" && row.state === "idle" && html` <span class="badge error">failed</span>`}
      ${ended && html` <span class="badge exit" title="Its variables are lost">process ended</span>`}
      ${row.author && html` <span class="author">${byWhom(row.author)}</span>`}
      ${why && html`<p class="notice">${why}</p>`}
      ${row.state === "waiting_for_input" && html`<${Answer} session=${row.session_id} prompt=${row.prompt} secret=${row.secret} />`}
      ${row.approval && html`<${Approval} session=${row.session_id} approval=${row.approval} />`}</td>
    <td class="number c-cells">${row.cells}</td>
    <td class="number c-cpu">${row.cpu === undefined ? "" : percent(row.cpu)}</td>
    <td class="number c-memory"><${Memory} row=${row} /></td>
    <td class="number c-since" title=${moment(row.since || row.created_at)}>${age(row.since || row.created_at)}</td>
  </tr>`;
}

async function newSession() {
  const given = await ask({
    title: "New session", action: "Create",
    fields: [{ name: "name", label: "Name", hint: "Left empty, it gets a random one.", pattern: "[A-Za-z0-9_\\-][A-Za-z0-9._\\-]{0,63}" },
      { name: "durable", label: "Durable: saved after each cell, and back after a restart", type: "checkbox" }],
  });
  if (!given) return;
  const made = await attempt(() => post(path("sessions"), { session_id: given.name || null, durable: !!given.durable }));
  if (made) go(`/sessions/${encodeURIComponent(made.session_id)}`);
}

export function SessionList() {
  const [search, setSearch] = useState("");
  const [by, setBy] = useState("state");
  const [reverse, setReverse] = useState(false);
  const field = useRef(null);
  useEffect(() => { title.value = "ingle"; }, []);
  useEffect(() => {
    const focus = (event) => {
      if (event.key !== "/" || event.target.closest("input, textarea, .cm-editor, dialog")) return;
      event.preventDefault();
      field.current?.focus();
    };
    addEventListener("keydown", focus);
    return () => removeEventListener("keydown", focus);
  }, []);
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  const all = [...sessions.value.values()];
  const rows = sorted(all.filter((row) => {
    const text = `${row.session_id} ${stateOf(row.state).word} ${row.code} ${byWhom(row.author)}`.toLowerCase();
    return words.every((word) => text.includes(word));
  }), by, reverse);
  const sort = (key) => { setReverse(by === key && !reverse); setBy(key); };
  return html`<main class="list">
    <div class="toolbar">
      <h1>Sessions</h1>
      <input ref=${field} type="search" placeholder="Search ( / )" aria-label="Search sessions" value=${search} onInput=${(event) => setSearch(event.target.value)} />
      <span class="muted" role="status">${known.value ? plural(rows.length, "session") : "Loading…"}${connected.value || !known.value ? "" : " · connection lost, trying again"}</span>
      <span class="spacer"></span>
      ${mayAct() && html`<button class="primary" onClick=${newSession}>New session</button>`}
    </div>
    ${rows.length > 0 && html`<table class="sessions">
      <thead><tr>${COLUMNS.map((column) => html`<th scope="col" class="c-${column.key} ${column.number ? "number" : ""}" aria-sort=${by === column.key ? (reverse ? "descending" : "ascending") : "none"}>
        <button class="quiet" onClick=${() => sort(column.key)}>${column.name}${by === column.key ? (reverse ? " ↑" : " ↓") : ""}</button></th>`)}</tr></thead>
      <tbody>${rows.map((row) => html`<${Row} key=${row.session_id} row=${row} />`)}</tbody></table>`}
    ${known.value && !all.length && html`<div class="empty"><p>No session lives on this server.</p>
      <p class="muted">An agent makes one with its first call. From a terminal: <code>ingle run -s main 'print(6 * 7)'</code></p></div>`}
    ${known.value && all.length > 0 && !rows.length && html`<p class="empty">No session matches.</p>`}
  </main>`;
}
