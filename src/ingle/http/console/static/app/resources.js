// What a session uses: CPU and memory while the page is open, with their limits, and the machine it shares.
import { html, useEffect, useState } from "./lib.js";
import { Chart } from "./chart.js";
import { bytes, duration, percent } from "./format.js";
import { machine, sessions } from "./overview.js";

const KEPT = 360;

/** Samples that this page has seen. */
function useSamples(timeline) {
  const [samples, setSamples] = useState([]);
  const row = sessions.value.get(timeline.id);
  useEffect(() => {
    if (row) setSamples((all) => [...all, { time: Date.now() / 1000, memory: row.memory ?? NaN, cpu: row.cpu ?? NaN }].slice(-KEPT));
  }, [row]);
  return samples;
}

export function Resources({ timeline }) {
  const samples = useSamples(timeline);
  const info = timeline.info.value, facts = machine.value;
  const limits = info?.limits || {};
  const times = samples.map((each) => each.time);
  const span = times.length > 1 ? duration(times[times.length - 1] - times[0]) : "";
  const last = samples[samples.length - 1];
  return html`<div class="resources">
    <h3>Memory <span class="muted">${last && Number.isFinite(last.memory) ? bytes(last.memory) : ""}${limits.memory ? ` of ${bytes(limits.memory)}` : ""}</span></h3>
    <${Chart} series=${[{ name: "memory", values: samples.map((each) => each.memory ?? NaN) }]} times=${times} limit=${limits.memory ?? undefined} zero text=${bytes} label=${`Memory over ${span}`} />
    <h3>CPU <span class="muted">${last && Number.isFinite(last.cpu) ? percent(last.cpu) : ""}${limits.cpu ? ` of ${percent(limits.cpu)}` : ""}</span></h3>
    <${Chart} series=${[{ name: "cpu", values: samples.map((each) => each.cpu ?? NaN) }]} times=${times} limit=${limits.cpu ?? undefined} zero text=${percent} label=${`CPU over ${span}`} />
    <p class="muted">${span && `The last ${span}.`}</p>
    <dl class="facts">
      ${info && html`<dt>CPU time</dt><dd>${duration(info.cpu_seconds)}</dd><dt>Python</dt><dd>${info.python}</dd><dt>Folder</dt><dd><code>${info.cwd}</code></dd>
        <dt>Isolation</dt><dd>${info.isolation}</dd><dt>Network</dt><dd>${info.network}</dd>`}
      ${Object.entries(limits).filter(([, value]) => value !== null).map(([name, value]) => html`<dt>Limit: ${name}</dt><dd>${/memory|disk|file/.test(name) ? bytes(value) : value}</dd>`)}
      ${facts && html`<dt>Machine</dt><dd>${facts.cores} cores, load ${facts.load}; memory ${bytes(facts.memory_used)} of ${bytes(facts.memory)}; disk ${bytes(facts.disk_used)} of ${bytes(facts.disk)}</dd>`}
    </dl>
  </div>`;
}
