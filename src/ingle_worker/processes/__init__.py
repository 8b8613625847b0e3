"""The processes above a session: holder, zygote and init, for sessions and for shell tasks."""
