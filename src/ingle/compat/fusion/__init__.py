"""The API of SandboxFusion: programs and notebooks, each in a new session."""
