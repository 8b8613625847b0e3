// The server: the machine, what code may do, the checks of `ingle doctor`, and tokens for others.
import { html, useEffect, useState } from "./lib.js";
import { ask as request, attempt, get, isAdmin, me, path, post } from "./api.js";
import { ask } from "./dialog.js";
import { bytes, moment } from "./format.js";
import { machine, sessions, title } from "./overview.js";

const SIGNS = { fine: "✓", warning: "!", broken: "✕" };

function Doctor() {
  const [found, setFound] = useState(null);
  const [busy, setBusy] = useState(false);
  const check = async () => { setBusy(true); setFound(await attempt(() => post(path("doctor"))) || found); setBusy(false); };
  return html`<section><h2>Health</h2>
    <p><button onClick=${check} disabled=${busy}>${busy ? "Checking…" : "Check this installation"}</button> <span class="muted">as <code>ingle doctor</code> does</span></p>
    ${found && html`<table class="rows findings"><tbody>${found.findings.map((each) => html`<tr class=${each.state}>
      <td><span class="sign" title=${each.state}>${SIGNS[each.state]}</span></td><th scope="row">${each.about}</th><td>${each.text}</td></tr>`)}</tbody></table>`}</section>`;
}

function Tokens() {
  const [found, setFound] = useState(null);
  const look = () => get(path("tokens")).then(setFound, () => {});
  useEffect(() => { look(); }, []);
  if (!found) return null;
  const add = async () => {
    const given = await ask({ title: "New token", action: "Create", text: "Its holder sees only the sessions of its tenant.",
      fields: [{ name: "name", label: "Name", required: true }, { name: "tenant", label: "Tenant", hint: "Left empty, it is the name." },
        { name: "scope", label: "May", options: [{ value: "execute", text: "use sessions" }, { value: "read", text: "only look" }, { value: "admin", text: "also see the server" }] }] });
    if (!given) return;
    const made = await attempt(() => post(path("tokens"), { name: given.name, tenant: given.tenant || null, scope: given.scope }));
    if (!made) return;
    look();
    await ask({ title: "The token", content: html`<p><input class="link" readonly value=${made.token} aria-label="Token" onFocus=${(event) => event.target.select()} /></p><p class="muted">It is shown only once.</p>` });
  };
  const revoke = async (name) => {
    const given = await ask({ title: `Revoke ${name}?`, action: "Revoke", lost: "access for everybody who uses this token, and the links made with it." });
    if (given) { await attempt(() => request("DELETE", path("tokens", name))); look(); }
  };
  return html`<section><h2>Tokens</h2><p><button onClick=${add}>New token</button></p>
    ${!found.tokens.length && html`<p class="muted">Only the owner has a token. A token for another person opens sessions of its own, and can be revoked.</p>`}
    ${found.tokens.length > 0 && html`<table class="rows"><thead><tr><th scope="col">Name</th><th scope="col">Tenant</th><th scope="col">Scope</th><th scope="col">Made</th><th scope="col"><span class="hidden">Actions</span></th></tr></thead>
      <tbody>${found.tokens.map((each) => html`<tr key=${each.name}><th scope="row">${each.name}</th><td>${each.tenant}</td><td>${each.scope}</td><td>${moment(each.created_at)}</td>
        <td><button class="quiet" onClick=${() => revoke(each.name)}>Revoke</button></td></tr>`)}</tbody></table>`}</section>`;
}

export function Machine() {
  useEffect(() => { title.value = "Server · ingle"; }, []);
  const facts = machine.value;
  const memory = [...sessions.value.values()].reduce((sum, row) => sum + (row.memory || 0), 0);
  return html`<main class="machine"><h1>Server</h1>
    <dl class="facts">
      <dt>Version</dt><dd>ingle ${me.value.version}</dd>
      <dt>Isolation</dt><dd>${me.value.isolation}</dd><dt>Network</dt><dd>${me.value.network}</dd>
      <dt>Sessions</dt><dd>${sessions.value.size}, with ${bytes(memory)} together</dd>
      ${facts && html`<dt>Cores</dt><dd>${facts.cores}, load ${facts.load}</dd>
        <dt>Memory</dt><dd>${bytes(facts.memory_used)} of ${bytes(facts.memory)}</dd><dt>Disk</dt><dd>${bytes(facts.disk_used)} of ${bytes(facts.disk)}</dd>`}
      <dt>Interface</dt><dd><a href="/docs">The HTTP interface</a></dd>
    </dl>
    ${isAdmin() && html`<${Doctor} /><${Tokens} />`}
  </main>`;
}
