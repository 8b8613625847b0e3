"""The HTTP door: sessions and cells as resources, behind one guard. It translates, and decides nothing."""
