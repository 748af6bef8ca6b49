"""`octavo doctor`: names what limits a running engine, from its metrics. No torch; the server is not imported."""
