"""Named environments: sets of packages for an interpreter, built in the data folder."""
