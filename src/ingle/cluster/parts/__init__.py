"""Parts of the node of a cluster: shell tasks, drains, and what all agents have in common."""
