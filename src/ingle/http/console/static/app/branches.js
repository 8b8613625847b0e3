// Branches of a session: its checkpoints as a line of states, copies of it, and saved sessions; compare and go back.
import { html, useEffect, useState } from "./lib.js";
import { ask as request, attempt, get, mayAct, path, post, query, sessionPath } from "./api.js";
import { rollback } from "./actions.js";
import { plain } from "./ansi.js";
import { ask } from "./dialog.js";
import { age, bytes, moment, plural } from "./format.js";
import { sessions } from "./overview.js";
import { go, Link } from "./router.js";

const NAME = "[A-Za-z0-9_\\-][A-Za-z0-9._\\-]{0,63}";

/** A variable at one moment: its type, extent and size. */
const inWords = (state) => [state.type, state.shape?.join(" × ") ?? state.length, bytes(state.size)].filter((each) => each || each === 0).join(", ");

const change = ({ before, after }) => {
  const words = [before, after].filter(Boolean).map(inWords);
  return words[0] === words[1] ? words[0] : words.join(" → ");
};

/** How the session differs from a state: its variables where the server compares them, and its files. */
function Difference({ found, close }) {
  const files = found.files || [];
  const variables = found.variables || [];
  return html`<section class="value" aria-label="Differences">
    <header><h3>Compared with ${found.to}</h3><span class="spacer"></span><button class="quiet" onClick=${close}>Close</button></header>
    ${found.variables && !variables.length && html`<p class="muted">No variable differs.</p>`}
    ${variables.length > 0 && html`<table class="rows"><tbody>${variables.map((each) => html`<tr key=${each.name}>
      <td>${each.change}</td><th scope="row"><b>${each.name}</b></th><td class="muted">${plain(change(each))}</td></tr>`)}</tbody></table>`}
    ${found.unknown?.length > 0 && html`<p class="muted">Not compared: ${found.unknown.slice(0, 20).join(", ")}</p>`}
    ${found.files === null && html`<p class="muted">Files of this session are not kept with its states.</p>`}
    ${found.files && !files.length && html`<p class="muted">No file differs.</p>`}
    ${files.map((file) => html`<details><summary>${file.change} <b>${file.path}</b></summary>
      <pre class="text diff">${(file.text ?? "This file is no text, or it is large.").split("\n").map((line) =>
        html`<span class=${line[0] === "+" ? "plus" : line[0] === "-" ? "minus" : ""}>${line}${"\n"}</span>`)}</pre></details>`)}
    ${found.more_files > 0 && html`<p class="muted">${plural(found.more_files, "more file")}</p>`}
    ${found.notices.map((notice) => html`<p class="notice">${notice}</p>`)}
  </section>`;
}

/** One point of the line of states. */
function Point({ kind, title, about, children }) {
  return html`<li class="point ${kind}"><div><b>${title}</b> <span class="muted">${about}</span></div><div class="buttons">${children}</div></li>`;
}

export function Branches({ timeline }) {
  const id = timeline.id;
  const [checkpoints, setCheckpoints] = useState(null);
  const [snapshots, setSnapshots] = useState([]);
  const [difference, setDifference] = useState(null);
  const [again, setAgain] = useState(0);
  const look = () => setAgain((count) => count + 1);
  useEffect(() => {
    if (timeline.ended.value) return;
    attempt(() => get(sessionPath(id, "checkpoints"))).then((found) => found && setCheckpoints(found.checkpoints));
    if (mayAct()) get(path("snapshots")).then((found) => setSnapshots(found.snapshots.filter((each) => each.session_id === id)), () => {});
  }, [id, again, timeline.finished.value]);
  const copies = [...sessions.value.values()].filter((row) => row.forked_from === id || (row.session_id !== id && row.session_id.startsWith(`${id}-`)));
  const checkpoint = async () => {
    const given = await ask({ title: "Make a checkpoint", action: "Make it", text: "The state of the session is kept in memory, to go back to.",
      fields: [{ name: "name", label: "Name", value: `cell-${timeline.count.value}`, required: true, pattern: NAME }] });
    if (given && await attempt(() => post(sessionPath(id, "checkpoints"), { name: given.name }))) look();
  };
  const compare = (name) => attempt(() => get(query(sessionPath(id, "diff"), { to: name }))).then((found) => found && setDifference(found));
  const remove = async (name) => {
    const given = await ask({ title: `Remove the checkpoint ${name}?`, action: "Remove", lost: "this state. The session goes on as it is." });
    if (given) { await attempt(() => request("DELETE", sessionPath(id, "checkpoints", name))); look(); }
  };
  const load = async (snapshot) => {
    const made = await attempt(() => post(path("snapshots", snapshot.name, "load"), { session_id: `${snapshot.name}-${Date.now() % 10000}` }));
    if (made) go(`/sessions/${encodeURIComponent(made.session.session_id)}`);
  };
  return html`<div class="branches">
    ${mayAct() && html`<div class="toolbar"><button onClick=${checkpoint}>Make a checkpoint</button></div>`}
    ${difference && html`<${Difference} found=${difference} close=${() => setDifference(null)} />`}
    <ol class="graph" aria-label="States of the session, newest first">
      <${Point} kind="now" title="Now" about=${`after cell ${timeline.count.value}`} />
      ${copies.map((row) => html`<${Point} key=${row.session_id} kind="copy" title=${html`<${Link} to=${`/sessions/${encodeURIComponent(row.session_id)}`}>${row.session_id}<//>`} about=${`copy, made ${age(row.created_at)} ago, ${plural(row.cells, "cell")}`}>
        ${mayAct() && html`<button class="quiet" onClick=${() => compare(row.session_id)}>Compare</button>`}<//>`)}
      ${[...(checkpoints || [])].reverse().map((each) => html`<${Point} key=${each.name} kind=${each.auto ? "auto" : "checkpoint"} title=${each.auto ? `Before cell ${each.cell + 1}` : each.name}
        about=${`after cell ${each.cell}, ${age(each.created_at)} ago${each.memory ? `, ${bytes(each.memory)}` : ""}`}>
        ${mayAct() && html`<button class="quiet" onClick=${() => compare(each.name)}>Compare</button>
          <button class="quiet" onClick=${async () => { if (await rollback(id, each.name)) look(); }}>Go back</button>
          ${!each.auto && html`<button class="quiet" onClick=${() => remove(each.name)}>Remove</button>`}`}<//>`)}
    </ol>
    ${checkpoints && !checkpoints.length && html`<p class="muted">No checkpoint yet. With <code>checkpoints="auto"</code> a session makes one before each cell.</p>`}
    ${snapshots.length > 0 && html`<h3>Saved on disk</h3><table class="rows"><tbody>${snapshots.map((each) => html`<tr key=${each.name}>
      <th scope="row">${each.name}</th><td class="muted" title=${moment(each.saved_at)}>${age(each.saved_at)} ago, after cell ${each.cell}</td><td class="number">${bytes(each.size)}</td>
      <td><button class="quiet" onClick=${() => compare(`snapshot:${each.name}`)}>Compare</button> <button class="quiet" onClick=${() => load(each)}>Open as a session</button></td></tr>`)}</tbody></table>`}
  </div>`;
}
