"""The console: pages for people, and the routes that only they use."""
