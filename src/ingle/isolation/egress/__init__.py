"""The HTTP proxy that is a sandbox's only access to the network."""
