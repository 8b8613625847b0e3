"""State of several servers in one object store: claims of sessions, leases of servers, saves and snapshots.

Nothing here knows which servers there are. A name in the store belongs to the server that created it first.
"""
