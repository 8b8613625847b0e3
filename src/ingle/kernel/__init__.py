"""A kernel of Jupyter whose code runs in a session: a program on the side of the client."""
