"""Executors of agent frameworks, on sessions of ingle. Each module needs the package that it is named after."""
