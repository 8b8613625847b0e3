// States of sessions, in words that say what to do.
import { html } from "./lib.js";
import { age } from "./format.js";

export const STATES = {
  waiting_for_input: { word: "waiting for you", order: 0, kind: "waiting" },
  waiting_for_approval: { word: "waiting for you", order: 0, kind: "waiting" },
  dead: { word: "dead", order: 1, kind: "dead" },
  running: { word: "running", order: 2, kind: "running" },
  starting: { word: "starting", order: 3, kind: "running" },
  idle: { word: "idle", order: 4, kind: "idle" },
  hibernated: { word: "hibernated", order: 5, kind: "hibernated" },
};

export const stateOf = (state) => STATES[state] || { word: state, order: 6, kind: "idle" };

export function State({ state, since, trial }) {
  const { word, kind } = stateOf(state);
  return html`<span class="state ${kind}"><span class="dot" aria-hidden="true"></span>${word}${trial ? ", trial open" : ""}${
    kind === "running" && since ? html` <span class="muted">${age(since)}</span>` : ""}</span>`;
}
