// Branches of a session: its checkpoints as a line of states, copies of it, and saved sessions; compare, go back, adopt.
import { html, useEffect, useState } from "./lib.js";
import { ask as request, attempt, get, load, mayAct, path, post, query, sessionPath } from "./api.js";
import { rollback } from "./actions.js";
import { adopt } from "./adopt.js";
import { Trials } from "./trials.js";
import { Changes } from "./changes.js";
import { ask } from "./dialog.js";
import { age, bytes, moment, plural } from "./format.js";
import { sessions } from "./overview.js";
import { go, Link } from "./router.js";

/** Names may be used again, so that copies could seem to be their own ancestors. */
const MAX_DEPTH = 8;
const NAME = "[A-Za-z0-9_\\-][A-Za-z0-9._\\-]{0,63}";

/** How the session differs from a state. */
function Difference({ found, close }) {
  return html`<section class="value" aria-label="Differences">
    <header><h3>Compared with ${found.to}</h3><span class="spacer"></span><button class="quiet" onClick=${close}>Close</button></header>
    <${Changes} found=${found} same="differs" />
  </section>`;
}

/** One point of the line of states. */
function Point({ kind, title, about, depth = 0, children }) {
  return html`<li class="point ${kind}" style=${depth ? { marginLeft: `${18 * (depth + 1)}px` } : undefined}><div><b>${title}</b> <span class="muted">${about}</span></div><div class="buttons">${children}</div></li>`;
}

/** Copies of a session and copies of those, each below its original: [row, depth]. */
function descendants(id, depth = 0) {
  if (depth > MAX_DEPTH) return [];
  return [...sessions.value.values()].filter((row) => row.parent === id && row.session_id !== id)
    .sort((a, b) => a.created_at - b.created_at).flatMap((row) => [[row, depth], ...descendants(row.session_id, depth + 1)]);
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
    load(() => get(sessionPath(id, "checkpoints"))).then((found) => found && setCheckpoints(found.checkpoints));
    if (mayAct()) get(path("snapshots")).then((found) => setSnapshots(found.snapshots.filter((each) => each.session_id === id)), () => {});
  }, [id, again, timeline.finished.value]);
  const copies = descendants(id);
  const parent = sessions.value.get(id)?.parent ?? timeline.info.value?.parent;
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
  const open = async (snapshot) => {
    const made = await attempt(() => post(path("snapshots", snapshot.name, "load"), { session_id: `${snapshot.name}-${Date.now() % 10000}` }));
    if (made) go(`/sessions/${encodeURIComponent(made.session.session_id)}`);
  };
  return html`<div class="branches">
    ${mayAct() && html`<div class="toolbar"><button onClick=${checkpoint}>Make a checkpoint</button></div>`}
    <${Trials} timeline=${timeline} />
    ${difference && html`<${Difference} found=${difference} close=${() => setDifference(null)} />`}
    <ol class="graph" aria-label="States of the session, newest first">
      <${Point} kind="now" title="Now" about=${`after cell ${timeline.count.value}`} />
      ${copies.map(([row, depth]) => html`<${Point} key=${row.session_id} kind="copy" depth=${depth} title=${html`<${Link} to=${`/sessions/${encodeURIComponent(row.session_id)}/branches`}>${row.session_id}<//>`} about=${`copy, made ${age(row.created_at)} ago, ${plural(row.cells, "cell")}`}>
        ${mayAct() && html`<button class="quiet" onClick=${() => compare(row.session_id)}>Compare</button>
          ${depth === 0 && html`<button class="quiet" onClick=${async () => { if (await adopt(id, row.session_id)) look(); }}>Adopt</button>`}`}<//>`)}
      ${[...(checkpoints || [])].reverse().map((each) => html`<${Point} key=${each.name} kind=${each.auto ? "auto" : "checkpoint"} title=${each.auto ? `Before cell ${each.cell + 1}` : each.name}
        about=${`after cell ${each.cell}, ${age(each.created_at)} ago${each.memory ? `, ${bytes(each.memory)}` : ""}`}>
        ${mayAct() && html`<button class="quiet" onClick=${() => compare(each.name)}>Compare</button>
          <button class="quiet" onClick=${async () => { if (await rollback(id, each.name)) look(); }}>Go back</button>
          ${!each.auto && html`<button class="quiet" onClick=${() => remove(each.name)}>Remove</button>`}`}<//>`)}
      ${parent && html`<${Point} kind="parent" title=${sessions.value.has(parent) ? html`<${Link} to=${`/sessions/${encodeURIComponent(parent)}/branches`}>${parent}<//>` : parent}
        about=${sessions.value.has(parent) ? "the original of this copy" : "the original of this copy; it has ended"}>
        ${mayAct() && sessions.value.has(parent) && html`<button class="quiet" onClick=${() => compare(parent)}>Compare</button>
          <button class="quiet" onClick=${async () => { if (await adopt(parent, id)) go(`/sessions/${encodeURIComponent(parent)}/branches`); }}>Adopt this copy there</button>`}<//>`}
    </ol>
    ${checkpoints && !checkpoints.length && html`<p class="muted">No checkpoint yet. With <code>checkpoints="auto"</code> a session makes one before each cell.</p>`}
    ${snapshots.length > 0 && html`<h3>Saved on disk</h3><table class="rows"><tbody>${snapshots.map((each) => html`<tr key=${each.name}>
      <th scope="row">${each.name}</th><td class="muted" title=${moment(each.saved_at)}>${age(each.saved_at)} ago, after cell ${each.cell}</td><td class="number">${bytes(each.size)}</td>
      <td><button class="quiet" onClick=${() => compare(`snapshot:${each.name}`)}>Compare</button> <button class="quiet" onClick=${() => open(each)}>Open as a session</button></td></tr>`)}</tbody></table>`}
  </div>`;
}
