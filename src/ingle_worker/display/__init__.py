"""From values to mime bundles."""
