// The vendored libraries, by one name. A new version changes this file and MANIFEST.json alone.
export * from "../vendor/preact-11.2.0.bundle.js";

let editor, markdown;

/** Load the editor when it is first needed. */
export const loadEditor = () => (editor ??= import("../vendor/codemirror-6.0.2.bundle.js"));

/** Load the Markdown reader when it is first needed. */
export const loadMarkdown = () => (markdown ??= import("../vendor/marked-18.2.0.bundle.js"));
