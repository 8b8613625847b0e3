"""Shell: commands as tasks, each below an init of its own, and persistent shells that run one after another."""
