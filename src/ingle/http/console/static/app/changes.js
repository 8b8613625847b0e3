// What differs between two states of a session: its variables where the server compares them, and its files.
import { html } from "./lib.js";
import { plain } from "./ansi.js";
import { bytes, plural } from "./format.js";

/** A variable at one moment: its type, extent and size. */
const inWords = (state) => [state.type, state.shape?.join(" × ") ?? state.length, bytes(state.size)].filter((each) => each || each === 0).join(", ");

const change = ({ before, after }) => {
  const words = [before, after].filter(Boolean).map(inWords);
  return words[0] === words[1] ? words[0] : words.join(" → ");
};

/** `same` is the verb for what would have been listed, had there been any. */
export function Changes({ found, same }) {
  const files = found.files || [];
  const variables = found.variables || [];
  return html`${found.variables && !variables.length && html`<p class="muted">No variable ${same}.</p>`}
    ${variables.length > 0 && html`<table class="rows"><tbody>${variables.map((each) => html`<tr key=${each.name}>
      <td>${each.change}</td><th scope="row"><b>${each.name}</b></th><td class="muted">${plain(change(each))}</td></tr>`)}</tbody></table>`}
    ${found.unknown?.length > 0 && html`<p class="muted">Not compared: ${found.unknown.slice(0, 20).join(", ")}</p>`}
    ${found.files === null && html`<p class="muted">Files of this session are not kept with its states.</p>`}
    ${found.files && !files.length && html`<p class="muted">No file ${same}.</p>`}
    ${files.map((file) => html`<details><summary>${file.change} <b>${plain(file.path)}</b></summary>
      <pre class="text diff">${(file.text ?? "This file is no text, or it is large.").split("\n").map((line) =>
        html`<span class=${line[0] === "+" ? "plus" : line[0] === "-" ? "minus" : ""}>${plain(line)}${"\n"}</span>`)}</pre></details>`)}
    ${found.more_files > 0 && html`<p class="muted">${plural(found.more_files, "more file")}</p>`}
    ${found.notices.map((notice) => html`<p class="notice">${plain(notice)}</p>`)}`;
}
