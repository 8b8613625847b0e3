"""The proxy that is a sandbox's only way to the network."""
