// The list of all sessions, kept current by the server.
import { computed, effect, signal } from "./lib.js";
import { follow } from "./api.js";

export const sessions = signal(new Map());
export const machine = signal(null);
export const connected = signal(false);
export const known = signal(false);

function take(message) {
  const next = message.type === "all" ? new Map() : new Map(sessions.value);
  for (const row of message.sessions) next.set(row.session_id, row);
  for (const name of message.gone || []) next.delete(name);
  sessions.value = next;
  machine.value = message.machine;
  known.value = true;
}

/** Follow the list while the page is open. A reader of a link has no list. */
export function start() {
  follow(() => "/v1/overview", take, {
    opened: () => { connected.value = true; },
    lost: () => { connected.value = false; },
  });
}

export const isWaiting = (row) => row.state.startsWith("waiting");
export const waiting = computed(() => [...sessions.value.values()].filter(isWaiting));

/** Title of the page; a session that waits comes first, so that its tab can be seen. */
export const title = signal("ingle");
effect(() => {
  const count = waiting.value.length;
  document.title = count ? `(${count}) waiting for you · ${title.value}` : title.value;
});
