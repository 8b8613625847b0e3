"""State on disk that outlives a worker or the server: snapshots, durable sessions and the user's library."""
