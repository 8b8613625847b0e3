"""Commands that show live sessions: attach, top, export."""
