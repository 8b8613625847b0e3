"""Who may use the HTTP API: tokens, and the guard that asks for them."""
