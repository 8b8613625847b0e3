"""What a session may use: limits, how they are applied, and who watches them."""
