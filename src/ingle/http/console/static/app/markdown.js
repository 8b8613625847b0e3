// Markdown as virtual nodes, made from the tokens of the reader. HTML in it is shown as text and links are checked.
import { html, loadMarkdown, useEffect, useState } from "./lib.js";

const SAFE_LINK = /^(https?:|mailto:|#)/i;

const inline = (tokens) => (tokens || []).map((token) => {
  switch (token.type) {
    case "strong": return html`<strong>${inline(token.tokens)}</strong>`;
    case "em": return html`<em>${inline(token.tokens)}</em>`;
    case "del": return html`<del>${inline(token.tokens)}</del>`;
    case "codespan": return html`<code>${unescaped(token.text)}</code>`;
    case "br": return html`<br />`;
    case "link": return SAFE_LINK.test(token.href)
      ? html`<a href=${token.href} rel="noreferrer noopener nofollow" target="_blank">${inline(token.tokens)}</a>`
      : html`<span>${inline(token.tokens)}</span>`;
    // A picture from elsewhere would be a request to another host.
    case "image": return /^data:image\//i.test(token.href)
      ? html`<img src=${token.href} alt=${token.text} />` : html`<span class="muted">[${token.text || "image"}]</span>`;
    case "text": return token.tokens ? inline(token.tokens) : unescaped(token.text);
    default: return unescaped(token.raw);
  }
});

/** The reader escapes some characters in texts; a text node needs none of that. */
function unescaped(text) {
  return text.replace(/&(amp|lt|gt|quot|#39);/g, (_, name) => ({ amp: "&", lt: "<", gt: ">", quot: '"', "#39": "'" })[name]);
}

const cells = (row, tag) => row.map((cell) => html`<${tag} style=${{ textAlign: cell.align || "left" }}>${inline(cell.tokens)}<//>`);

const block = (token) => {
  switch (token.type) {
    case "heading": return html`<div role="heading" aria-level=${Math.min(6, token.depth + 3)} class="md-heading md-${token.depth}">${inline(token.tokens)}</div>`;
    case "paragraph": return html`<p>${inline(token.tokens)}</p>`;
    case "code": return html`<pre>${token.text}</pre>`;
    case "blockquote": return html`<blockquote>${token.tokens.map(block)}</blockquote>`;
    case "list": {
      const items = token.items.map((item) => html`<li>${item.task ? (item.checked ? "☑ " : "☐ ") : ""}${item.tokens.map(block)}</li>`);
      return token.ordered ? html`<ol start=${token.start || 1}>${items}</ol>` : html`<ul>${items}</ul>`;
    }
    case "table": return html`<table><thead><tr>${cells(token.header, "th")}</tr></thead>
      <tbody>${token.rows.map((row) => html`<tr>${cells(row, "td")}</tr>`)}</tbody></table>`;
    case "hr": return html`<hr />`;
    case "space": return null;
    case "text": return token.tokens ? html`<span>${inline(token.tokens)}</span>` : unescaped(token.text);
    default: return html`<span>${token.raw}</span>`;
  }
};

export function Markdown({ text }) {
  const [read, setRead] = useState(null);
  useEffect(() => { loadMarkdown().then((library) => setRead(() => library.lexer)); }, []);
  if (!read) return html`<pre class="text">${text}</pre>`;
  return html`<div class="markdown">${read(text).map(block)}</div>`;
}
