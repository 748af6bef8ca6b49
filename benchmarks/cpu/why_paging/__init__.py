"""Why blocks and continuous batching: the same engine, the same requests, the same memory, used in three ways."""
