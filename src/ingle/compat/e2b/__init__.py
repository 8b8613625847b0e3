"""API of E2B: sandboxes, the code interpreter, and files and commands of a sandbox."""
