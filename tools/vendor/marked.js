// The Markdown reader. The page uses its tokens only, and never HTML made by it.
export { lexer } from "marked";
