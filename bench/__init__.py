"""The bench: ingle, its peers and the floor, measured side by side in one run."""
