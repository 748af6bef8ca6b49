"""The code on docs/CLIENTS.md, which is a part of what the tests of these clients run."""
