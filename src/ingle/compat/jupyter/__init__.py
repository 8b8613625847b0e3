"""The API of Jupyter Server and Kernel Gateway, on sessions."""
