"""`ingle install`: the entry of ingle in the settings of other programs."""
