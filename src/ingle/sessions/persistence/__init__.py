"""What outlives a worker: saves, durable sessions, hibernation, checkpoints."""
