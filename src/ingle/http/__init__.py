"""The HTTP and WebSocket API: sessions and cells as resources, behind one guard."""
