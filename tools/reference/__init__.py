"""Generator of the reference pages. `python tools/reference` renews all pages from the code that they describe."""
