"""What outlives a cell, a worker or the server: the user's library, and sessions on disk."""
