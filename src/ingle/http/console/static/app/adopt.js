// Adoption: a copy takes the place of its original, after the person has seen what that changes.
import { html } from "./lib.js";
import { attempt, failure, get, post, query, sessionPath } from "./api.js";
import { Changes } from "./changes.js";
import { ask } from "./dialog.js";

const MAX_NAME = 64;

/** Make the copy the session that it is a copy of. Returns whether it was done. */
export async function adopt(id, copy) {
  // From the original to the copy: what is created, changed and deleted by it.
  const found = await attempt(() => get(query(sessionPath(copy, "diff"), { to: `session:${id}` })));
  if (!found) return false;
  const given = await ask({
    title: `Adopt ${copy}?`, action: "Adopt",
    text: `${copy} becomes ${id}, with its variables, files and cells. Nothing runs again.`,
    lost: `what only ${id} has, as listed here. ${copy} ends, with its checkpoints and its shell tasks. The transcript of ${id} stays.`,
    content: html`<section class="change-list" aria-label="What changes" tabindex="0"><${Changes} found=${found} same="changes" /></section>`,
    fields: [{ name: "keep", label: `Keep ${id} as it is now as a checkpoint, to go back to`, type: "checkbox", value: true }],
  });
  if (!given) return false;
  const done = await attempt(async () => {
    if (given.keep) await post(sessionPath(id, "checkpoints"), { name: `before-${copy}`.slice(0, MAX_NAME) });
    return post(sessionPath(id, "adopt"), { fork: copy });
  });
  if (done) failure.value = `${done.notice[0].toUpperCase()}${done.notice.slice(1)}.`;
  return !!done;
}
