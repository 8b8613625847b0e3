// Addresses of the page: `/`, `/machine`, `/sessions/NAME` and `/sessions/NAME/VIEW`, below the secret of a link.
import { html, signal } from "./lib.js";
import { base } from "./api.js";

const read = () => location.pathname.slice(base.length) || "/";

export const place = signal(read());
addEventListener("popstate", () => { place.value = read(); });

export function go(to) {
  history.pushState(null, "", base + to);
  place.value = to;
}

export function Link({ to, children, ...rest }) {
  const open = (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    event.preventDefault();
    go(to);
  };
  return html`<a href=${base + to} onClick=${open} ...${rest}>${children}</a>`;
}

/** What the address names: {page, session, view}. */
export function where() {
  const [first, second, third] = place.value.split("/").slice(1).map((part) => { try { return decodeURIComponent(part); } catch { return part; } });
  if (first === "sessions" && second) return { page: "session", session: second, view: third || "" };
  if (first === "machine") return { page: "machine" };
  return { page: "list" };
}
