// Light or dark: as the system has it, or as the person chose.
import { effect, signal } from "./lib.js";

const system = matchMedia("(prefers-color-scheme: dark)");
const read = () => { try { return localStorage.getItem("ingle-theme"); } catch { return null; } };

const chosen = signal(read());
const dark = signal(system.matches);
system.addEventListener("change", (event) => { dark.value = event.matches; });

export const theme = signal("light");
effect(() => {
  theme.value = chosen.value || (dark.value ? "dark" : "light");
  document.documentElement.dataset.theme = theme.value;
});

export function toggleTheme() {
  chosen.value = theme.value === "dark" ? "light" : "dark";
  try { localStorage.setItem("ingle-theme", chosen.value); } catch { /* a private window may refuse */ }
}
