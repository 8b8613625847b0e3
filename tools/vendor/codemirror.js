// The editor for cells, and the highlighter for cells that ran.
export { EditorView, keymap, placeholder, hoverTooltip } from "@codemirror/view";
export { EditorState, Compartment, Prec } from "@codemirror/state";
export { minimalSetup } from "codemirror";
export { autocompletion, completionKeymap, startCompletion, acceptCompletion } from "@codemirror/autocomplete";
export { indentWithTab, insertNewlineAndIndent } from "@codemirror/commands";
export { python, pythonLanguage } from "@codemirror/lang-python";
export { bracketMatching, indentOnInput, syntaxHighlighting } from "@codemirror/language";
export { classHighlighter, highlightCode } from "@lezer/highlight";
