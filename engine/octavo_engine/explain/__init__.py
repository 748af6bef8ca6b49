"""`octavo explain` and `octavo top`: what a running server says of itself, over HTTP, for a person at a terminal.

`fetching` asks the management port; `advice` and `report` are pure. No torch, and nothing of the server is imported.
"""
