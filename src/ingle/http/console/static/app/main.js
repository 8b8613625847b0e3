// The frame of all pages, and which of them the address names.
import { html, render, useEffect } from "./lib.js";
import { failure, get, isAdmin, me, base } from "./api.js";
import { Dialog } from "./dialog.js";
import { bytes, percent } from "./format.js";
import { SessionList } from "./list.js";
import { Machine } from "./machine.js";
import { machine, start, waiting } from "./overview.js";
import { Link, where } from "./router.js";
import { SessionPage } from "./session.js";
import { theme, toggleTheme } from "./theme.js";

function Totals() {
  const facts = machine.value;
  if (!facts) return null;
  return html`<${Link} to="/machine" class="totals" title="The server and its machine">
    <span>load ${facts.load} / ${facts.cores}</span><span>memory ${percent(facts.memory_used / facts.memory)} of ${bytes(facts.memory)}</span><//>`;
}

function Top({ page }) {
  const shared = me.value?.read_only;
  const count = waiting.value.length;
  return html`<header class="top">
    ${shared ? html`<span class="brand">ingle</span>` : html`<${Link} to="/" class="brand">ingle<//>`}
    ${!shared && page !== "list" && html`<${Link} to="/">All sessions<//>`}
    ${count > 0 && page !== "list" && html`<${Link} to="/" class="badge waiting_for_input">${count} waiting for you<//>`}
    <span class="spacer"></span>
    <${Totals} />
    ${isAdmin() && html`<${Link} to="/machine">Server<//>`}
    <button class="quiet" onClick=${toggleTheme} aria-label=${`Use ${theme.value === "dark" ? "light" : "dark"} colours`}>${theme.value === "dark" ? "☀" : "☾"}</button>
    ${me.value && html`<span class="who muted" title=${`Signed in as ${me.value.name}`}>${me.value.name}</span>`}
    ${me.value?.signs_out && html`<form method="post" action="/v1/signout"><button class="quiet">Sign out</button></form>`}
  </header>`;
}

function Message() {
  useEffect(() => {
    if (!failure.value) return;
    const timer = setTimeout(() => { failure.value = null; }, 12_000);
    return () => clearTimeout(timer);
  }, [failure.value]);
  return html`<div class="message" role="alert">${failure.value && html`<p>${failure.value} <button class="quiet" aria-label="Close" onClick=${() => { failure.value = null; }}>✕</button></p>`}</div>`;
}

function App() {
  const found = where();
  // A link shows one session, and its first page is that session.
  const shared = me.value?.read_only && me.value.session_id;
  const session = shared || (found.page === "session" && found.session);
  if (!me.value) return html`<${Message} />`;
  return html`<${Top} page=${session ? "session" : found.page} />
    ${session ? html`<${SessionPage} key=${session} id=${session} view=${found.view || ""} />`
      : found.page === "machine" ? html`<${Machine} />` : html`<${SessionList} />`}
    <${Message} /><${Dialog} />`;
}

const root = document.getElementById("app");
root.replaceChildren();
render(html`<${App} />`, root);
get("/v1/me").then((found) => { me.value = found; if (!found.read_only) start(); }, (error) => { failure.value = error.message; });
if (base) document.documentElement.dataset.shared = "";
