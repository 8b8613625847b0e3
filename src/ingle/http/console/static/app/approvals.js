// Calls of tools that wait for a person: what would be called with what, and the answer.
import { html, useState } from "./lib.js";
import { attempt, mayApprove, post, sessionPath } from "./api.js";
import { plain } from "./ansi.js";
import { duration } from "./format.js";

const OUTCOMES = {
  ok: "done", error: "failed", denied: "refused", budget: "over its budget", unknown: "no such tool",
  unavailable: "not available", timeout: "took too long", cancelled: "given up",
};

/** Arguments as `name=value`, as the code wrote them; other JSON as it is. */
function inCall(text) {
  try {
    const value = JSON.parse(text);
    if (value && typeof value === "object" && !Array.isArray(value)) {
      return Object.entries(value).map(([name, each]) => `${name}=${JSON.stringify(each)}`).join(", ");
    }
  } catch { /* shortened */ }
  return text;
}

const callOf = (call) => plain(`${call.server}.${call.tool}(${inCall(call.arguments)})`);

/** One call with its answer. `done` is called after the person has decided. */
export function Approval({ session, approval, done = () => {} }) {
  const [busy, setBusy] = useState(false);
  const decide = async (allow) => {
    setBusy(true);
    await attempt(() => post(sessionPath(session, "approvals", approval.id), { allow }));
    setBusy(false);
    done();
  };
  const effect = approval.destructive ? html`<span class="badge error">may destroy</span>`
    : approval.read_only ? html`<span class="badge">only reads</span>` : "";
  return html`<div class="approval" role="group" aria-label=${`Approval of ${plain(approval.tool)}`}>
    <p>The code asks to call <b>${plain(approval.server)}.${plain(approval.tool)}</b> ${effect}</p>
    <pre class="text">${callOf(approval)}</pre>
    ${mayApprove() ? html`<p class="buttons"><button class="primary" disabled=${busy} onClick=${() => decide(true)}>Allow</button>
      <button disabled=${busy} onClick=${() => decide(false)}>Refuse</button></p>`
      : html`<p class="muted">Your token may not answer this. It needs the scope <code>approve</code>.</p>`}
  </div>`;
}

/** A call that is over. */
export function Called({ call }) {
  return html`<p class="called ${call.outcome === "ok" ? "" : "failed"}" title="A tool that the cell called"><code>${callOf(call)}</code>
    <span class="muted">${OUTCOMES[call.outcome] || call.outcome}, ${duration(call.duration)}</span></p>`;
}
