"""What code in a session may reach and use: granted by the operator, bounded by the kernel, watched where it cannot."""
