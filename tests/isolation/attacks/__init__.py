"""All attacks, by family. Importing this collects them."""

from isolation.attacks import files, kernel, network, others, persistence, resources, secrets, survival, wire

__all__ = ["files", "kernel", "network", "others", "persistence", "resources", "secrets", "survival", "wire"]
