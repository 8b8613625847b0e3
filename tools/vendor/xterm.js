// The terminal of shell tasks. Its rules are a style sheet of the page, which needs no inline style.
import css from "@xterm/xterm/css/xterm.css";

export { Terminal } from "@xterm/xterm";
export { FitAddon } from "@xterm/addon-fit";

/** Add the rules of the terminal to the page. */
export function addStyle() {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(css);
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
}
