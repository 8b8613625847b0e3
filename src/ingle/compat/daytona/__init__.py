"""API of Daytona: sandboxes, and the toolbox of each: interpreter, processes and files."""
