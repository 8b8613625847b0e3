// The vendored libraries, by one name. A new version changes this file and MANIFEST.json alone.
export * from "../vendor/preact-11.2.0.bundle.js";

let editor, markdown, terminal;

/** Load the editor when it is first needed. */
export const loadEditor = () => (editor ??= import("../vendor/codemirror-6.0.2.bundle.js"));

/** Load the Markdown reader when it is first needed. */
export const loadMarkdown = () => (markdown ??= import("../vendor/marked-18.2.0.bundle.js"));

/** Load the terminal when the first one is opened, with its rules. */
export const loadTerminal = () => (terminal ??= import("../vendor/xterm-6.0.0.bundle.js").then((found) => { found.addStyle(); return found; }));
