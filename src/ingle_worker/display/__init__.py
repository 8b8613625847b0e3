"""Rich display of values: from values to mime bundles."""
