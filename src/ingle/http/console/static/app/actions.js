// What a person can do with a session. Those that lose something say what, and ask.
import { html, useEffect, useRef } from "./lib.js";
import { ask as request, attempt, failure, get, mayAct, path, post, sessionPath } from "./api.js";
import { ask } from "./dialog.js";
import { duration, moment, plural } from "./format.js";
import { go } from "./router.js";

const NAME = "[A-Za-z0-9_\\-][A-Za-z0-9._\\-]{0,63}";
const said = (text) => { failure.value = text; };

const open = (id) => go(`/sessions/${encodeURIComponent(id)}`);

async function interrupt(id) {
  await attempt(() => post(sessionPath(id, "interrupt"), { wait: 0 }));
}

async function stop(id, info) {
  const given = await ask({
    title: `Stop ${id}?`, action: "Stop the session",
    text: "Its process and everything it started end now.",
    lost: `${plural(info?.variable_count ?? 0, "variable")}, the files of its own folder, and this transcript.${
      info?.durable ? " Its automatic save is removed, too." : ""} Snapshots that were saved by name stay.`,
  });
  if (given && await attempt(() => request("DELETE", sessionPath(id)))) go("/");
}

async function save(id) {
  const given = await ask({ title: `Save ${id}`, action: "Save", text: "Its variables are saved to disk under a name. The session goes on meanwhile.",
    fields: [{ name: "name", label: "Name of the snapshot", value: id, required: true, pattern: NAME }] });
  if (!given) return;
  const saved = await attempt(() => post(sessionPath(id, "save"), { name: given.name }));
  if (saved) said(`Saved ${plural(saved.variables, "variable")} as ${saved.snapshot} in ${duration(saved.execution_time)}.${
    saved.skipped.length ? ` Not saved: ${saved.skipped.map((each) => each.name).join(", ")}.` : ""}`);
}

async function fork(id) {
  const given = await ask({ title: "Open a copy", action: "Open the copy",
    text: `A copy of ${id} as it is now, with all its variables, to try things in. ${id} does not notice.`,
    fields: [{ name: "name", label: "Name of the copy", value: `${id}-copy`.slice(0, 64), pattern: NAME }] });
  if (!given) return;
  const made = await attempt(() => post(sessionPath(id, "fork"), { session_id: given.name || null }));
  if (made) open(made.sessions[0].session_id);
}

export async function rollback(id, checkpoint) {
  const { checkpoints } = await attempt(() => get(sessionPath(id, "checkpoints"))) || {};
  if (!checkpoints) return false;
  const target = checkpoint ? checkpoints.find((each) => each.name === checkpoint) : checkpoints[checkpoints.length - 1];
  if (!target) { said("There is no state to go back to. Make a checkpoint first."); return false; }
  const info = await attempt(() => get(sessionPath(id)));
  const undone = Math.max(0, (info?.execution_count ?? target.cell) - target.cell);
  const given = await ask({ title: "Roll back?", action: "Roll back",
    text: `${id} goes back to ${target.auto ? `before cell ${target.cell + 1}` : `“${target.name}”, after cell ${target.cell}`}, ${moment(target.created_at)}.`,
    lost: undone ? `what ${plural(undone, "cell")} did to variables and to files of its own folder. The transcript stays.` : "changes since then." });
  if (!given) return false;
  const done = await attempt(() => post(sessionPath(id, "rollback"), { name: target.name }));
  if (done) said(done.notice);
  return !!done;
}

async function clear(id, info) {
  const given = await ask({ title: `Clear ${id}?`, action: "Clear the variables", text: "The session starts with an empty namespace. Its process and its files stay.",
    lost: `${plural(info?.variable_count ?? 0, "variable")}.` });
  if (given) await attempt(() => post(sessionPath(id, "clear")));
}

async function share(id) {
  const given = await ask({ title: `Share ${id}`, action: "Make a link",
    text: "Everybody who has the link can read cells, outputs and variables. They can change nothing and see no files.",
    fields: [{ name: "seconds", label: "Ends after", options: [{ value: 3600, text: "1 hour" }, { value: 86400, text: "1 day" }, { value: 604800, text: "1 week" }] }] });
  if (!given) return;
  const made = await attempt(() => post(path("shares"), { session_id: id, expires_in: Number(given.seconds) }));
  if (!made) return;
  const url = location.origin + made.path;
  await ask({ title: "The link", content: html`<p><input class="link" readonly value=${url} aria-label="Link" onFocus=${(event) => event.target.select()} /></p>
    <p class="muted">It is shown only once, and ends ${moment(made.share.expires_at)}. Revoke it with <code>ingle share --revoke ${made.share.share_id}</code>.</p>` });
}

async function exported(id) {
  const given = await ask({ title: `Export ${id}`, action: "Export",
    fields: [{ name: "format", label: "As", options: [{ value: "ipynb", text: "Jupyter notebook (.ipynb)" }, { value: "py", text: "Python script (.py)" }, { value: "md", text: "Markdown (.md)" }, { value: "html", text: "Web page (.html)" }] }] });
  if (!given) return;
  const answer = await attempt(() => request("GET", `${sessionPath(id, "export")}?format=${given.format}`, undefined, { raw: true }));
  if (answer) download(await answer.blob(), `${id}.${given.format}`);
}

export function download(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** A menu closes when something of it is chosen, when the reader clicks elsewhere, and with Escape. */
function Menu({ children }) {
  const place = useRef(null);
  // What had the focus is hidden now. A dialog that follows gives the focus back to the menu.
  const fold = () => { if (place.current) { place.current.open = false; place.current.firstElementChild.focus(); } };
  useEffect(() => {
    const close = (event) => {
      if (!place.current?.open) return;
      if (event.type === "keydown" && event.key === "Escape") fold();
      else if (event.type === "click" && !place.current.contains(event.target)) place.current.open = false;
    };
    addEventListener("click", close);
    addEventListener("keydown", close);
    return () => { removeEventListener("click", close); removeEventListener("keydown", close); };
  }, []);
  return html`<details class="menu" ref=${place}><summary>More</summary><div onClick=${fold}>${children}</div></details>`;
}

export function Actions({ timeline }) {
  const id = timeline.id, state = timeline.state.value, info = timeline.info.value;
  const busy = state === "running" || state.startsWith("waiting");
  if (timeline.ended.value) return null;
  if (!mayAct()) return html`<div class="actions"><button onClick=${() => exported(id)}>Export</button></div>`;
  return html`<div class="actions" role="toolbar" aria-label="Actions">
    <button class=${busy ? "danger" : ""} disabled=${!busy} onClick=${() => interrupt(id)}>Interrupt</button>
    <button onClick=${() => fork(id)}>Open a copy</button>
    <button onClick=${() => save(id)}>Save</button>
    <button onClick=${() => rollback(id)}>Roll back</button>
    <${Menu}>
      <button onClick=${() => share(id)}>Share a link</button>
      <button onClick=${() => exported(id)}>Export</button>
      <button onClick=${() => clear(id, info)}>Clear variables</button>
      <button class="danger" onClick=${() => stop(id, info)}>Stop the session</button>
    <//>
  </div>`;
}
