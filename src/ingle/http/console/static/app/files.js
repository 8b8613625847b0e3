// Files of a session's folder: go through it, look at one, put one in by dropping it, take one out.
import { html, useEffect, useRef, useState } from "./lib.js";
import { ask as request, attempt, get, load, mayAct, query, sessionPath } from "./api.js";
import { download } from "./actions.js";
import { plain } from "./ansi.js";
import { ask } from "./dialog.js";
import { age, bytes, moment, plural } from "./format.js";
import { Markdown } from "./markdown.js";

const PREVIEW_BYTES = 200_000;
const PICTURES = { png: "image/png", jpg: "image/jpeg", jpeg: "image/jpeg", gif: "image/gif", webp: "image/webp", svg: "image/svg+xml" };
const MAX_PICTURE = 20_000_000;

const filePath = (id, name) => sessionPath(id, "files", ...name.split("/"));
const ending = (name) => name.slice(name.lastIndexOf(".") + 1).toLowerCase();

/** The first part of a file: a picture, Markdown, or text. */
function Preview({ id, file, close }) {
  const [shown, setShown] = useState(null);
  useEffect(() => {
    let url = null, gone = false;
    load(async () => {
      const type = PICTURES[ending(file.name)];
      if (type && file.size <= MAX_PICTURE) {
        const answer = await request("GET", filePath(id, file.path), undefined, { raw: true });
        url = URL.createObjectURL(new Blob([await answer.arrayBuffer()], { type }));
        if (!gone) setShown({ picture: url });
        return;
      }
      const answer = await request("GET", filePath(id, file.path), undefined, { raw: true });
      const reader = answer.body.getReader();
      const parts = [];
      let size = 0;
      while (size < PREVIEW_BYTES) {
        const { done, value } = await reader.read();
        if (done) break;
        parts.push(value);
        size += value.length;
      }
      reader.cancel();
      const text = await new Blob(parts).text();
      if (!gone) setShown({ text: text.slice(0, PREVIEW_BYTES), binary: text.slice(0, 1000).includes("\0") });
    });
    return () => { gone = true; if (url) URL.revokeObjectURL(url); };
  }, [file.path]);
  return html`<section class="value" aria-label=${`Preview of ${file.name}`}>
    <header><h3>${plain(file.name)}</h3><span class="muted">${bytes(file.size)}</span><span class="spacer"></span>
      <button class="quiet" onClick=${() => take(id, file)}>Download</button><button class="quiet" onClick=${close}>Close</button></header>
    ${!shown && html`<p class="muted">Loading…</p>`}
    ${shown?.picture && html`<img class="picture" src=${shown.picture} alt=${plain(file.name)} />`}
    ${shown?.binary && html`<p class="muted">This file is no text.</p>`}
    ${shown?.text !== undefined && !shown.binary && (ending(file.name) === "md" ? html`<${Markdown} text=${shown.text} />` : html`<pre class="text">${plain(shown.text)}</pre>`)}
    ${shown?.text !== undefined && file.size > PREVIEW_BYTES && html`<p class="muted">The first ${bytes(PREVIEW_BYTES)} of ${bytes(file.size)}.</p>`}
  </section>`;
}

async function take(id, file) {
  const answer = await attempt(() => request("GET", filePath(id, file.path), undefined, { raw: true }));
  if (answer) download(await answer.blob(), file.name);
}

export function Files({ timeline }) {
  const id = timeline.id;
  const [folder, setFolder] = useState("");
  const [found, setFound] = useState(null);
  const [chosen, setChosen] = useState(null);
  const [over, setOver] = useState(false);
  const [again, setAgain] = useState(0);
  const input = useRef(null);
  useEffect(() => {
    if (timeline.ended.value) return;
    load(() => get(query(sessionPath(id, "files"), { folder: folder || undefined }))).then((answer) => answer && setFound(answer));
  }, [id, folder, again, timeline.finished.value]);
  const upload = async (list) => {
    for (const file of list) await attempt(() => request("PUT", filePath(id, folder ? `${folder}/${file.name}` : file.name), file));
    setAgain((count) => count + 1);
  };
  const remove = async (file) => {
    const given = await ask({ title: `Remove ${file.name}?`, action: "Remove", lost: `the file, ${bytes(file.size)}.` });
    if (given) { await attempt(() => request("DELETE", filePath(id, file.path))); setChosen(null); setAgain((count) => count + 1); }
  };
  // Files that cells of this transcript created or changed.
  const touched = new Set([...timeline.cells.values()].flatMap((cell) => [...(cell.files?.created || []), ...(cell.files?.changed || [])]));
  const parts = folder ? folder.split("/") : [];
  const rows = [...(found?.files || [])].sort((a, b) => (b.kind === "folder") - (a.kind === "folder") || (a.name < b.name ? -1 : 1));
  return html`<div class="files ${over ? "over" : ""}" onDragOver=${(event) => { event.preventDefault(); setOver(true); }} onDragLeave=${() => setOver(false)}
    onDrop=${(event) => { event.preventDefault(); setOver(false); upload([...event.dataTransfer.files]); }}>
    <div class="toolbar"><nav aria-label="Folder"><button class="link" onClick=${() => setFolder("")}>folder</button>${parts.map((part, at) =>
      html` / <button class="link" onClick=${() => setFolder(parts.slice(0, at + 1).join("/"))}>${plain(part)}</button>`)}</nav>
      <span class="spacer"></span>
      ${mayAct() && html`<button onClick=${() => input.current.click()}>Upload</button><input ref=${input} type="file" multiple hidden aria-label="Files to upload" onChange=${(event) => upload([...event.target.files])} />`}</div>
    ${chosen && html`<${Preview} key=${chosen.path} id=${id} file=${chosen} close=${() => setChosen(null)} />`}
    <table class="rows"><thead><tr><th scope="col">Name</th><th scope="col" class="number">Size</th><th scope="col" class="number">Changed</th><th scope="col"><span class="hidden">Actions</span></th></tr></thead>
      <tbody>${rows.map((file) => { const full = folder ? `${folder}/${file.name}` : file.name; return html`<tr key=${file.name} class=${touched.has(full) ? "changed" : ""}>
        <th scope="row">${file.kind === "folder" ? html`<button class="link" onClick=${() => setFolder(full)}>${plain(file.name)}/</button>`
          : html`<button class="link" onClick=${() => setChosen({ ...file, path: full })}>${plain(file.name)}</button>`}
          ${touched.has(full) && html`<span class="tag" title="A cell of this session wrote it">changed</span>`}</th>
        <td class="number">${file.kind === "folder" ? "" : bytes(file.size)}</td><td class="number" title=${moment(file.modified)}>${age(file.modified)}</td>
        <td class="number">${file.kind === "file" && mayAct() && html`<button class="quiet" aria-label=${`Remove ${plain(file.name)}`} onClick=${() => remove({ ...file, path: full })}>✕</button>`}</td></tr>`; })}</tbody></table>
    ${found && !rows.length && html`<p class="empty">The folder is empty. Drop files here to put them in.</p>`}
    ${found?.truncated && html`<p class="muted">The folder has more files than ${plural(rows.length, "row")}.</p>`}
  </div>`;
}
