// Trials of a session: a cell that ran in a copy, what it would change, and the decision about it.
import { html, useEffect, useState } from "./lib.js";
import { attempt, failure, get, mayAct, post, sessionPath } from "./api.js";
import { plain } from "./ansi.js";
import { Changes } from "./changes.js";
import { ask } from "./dialog.js";
import { duration, now, plural } from "./format.js";

const LOOK_MS = 2000;

/** Hosts, processes and threads: what else the trial did, and what its commit ends. */
function Beside({ effect }) {
  return html`${effect.hosts?.length > 0 && html`<p>Hosts: ${effect.hosts.map((each) => `${plain(each.host)}${each.refused ? " (refused)" : ""}`).join(", ")}</p>`}
    ${effect.processes.length > 0 && html`<p>Still running: ${effect.processes.map(plain).join(", ")}</p>`}
    ${effect.threads > 0 && html`<p>${plural(effect.threads, "thread")} still running</p>`}
    ${effect.ends.length > 0 && html`<p class="notice">A commit would end: ${effect.ends.map(plain).join(", ")}</p>`}`;
}

function Trial({ id, trial, decided }) {
  const path = (verb) => sessionPath(id, "trials", trial.name, verb);
  const commit = async () => {
    const ends = trial.effect.ends;
    const given = ends.length ? await ask({ title: "Commit the trial?", action: "Commit", text: "The copy becomes the session. Nothing runs again.", lost: `${ends.join(", ")}.` }) : true;
    if (!given) return;
    const done = await attempt(() => post(path("commit")));
    if (done) failure.value = done.notice;
    decided();
  };
  const discard = async () => { await attempt(() => post(path("discard"))); decided(); };
  return html`<section class="value" aria-label=${`Trial ${trial.name}`}>
    <header><h3>Trial of cell ${trial.cell}</h3><span class="muted">${trial.status} · ends in ${duration(Math.max(0, Math.floor(trial.expires_at - now.value)))}</span></header>
    ${trial.effect ? html`<${Changes} found=${trial.effect} same="changes" /><${Beside} effect=${trial.effect} />` : html`<p class="muted">Its cell runs in a copy. The session waits.</p>`}
    ${mayAct() && html`<p class="buttons"><button class="primary" disabled=${!trial.effect} onClick=${commit}>Commit</button> <button onClick=${discard}>Discard</button></p>`}
  </section>`;
}

/** Open trials, looked for while the page is in view: they are no event of the session. */
export function Trials({ timeline }) {
  const [trials, setTrials] = useState([]);
  const look = () => get(sessionPath(timeline.id, "trials")).then((found) => setTrials(found.trials), () => setTrials([]));
  useEffect(() => {
    if (!mayAct() || timeline.ended.value) return;
    look();
    const timer = setInterval(() => { if (!document.hidden) look(); }, LOOK_MS);
    return () => clearInterval(timer);
  }, [timeline, timeline.ended.value]);
  return trials.map((trial) => html`<${Trial} key=${trial.name} id=${timeline.id} trial=${trial} decided=${look} />`);
}
