"""One model on several devices: processes that compute a shard each, and follow the first of them step by step.

Rank 0 is the server's process: it schedules, samples and speaks. The others (`worker`) are its children. They have
weights, a cache and a socket, and no state beside these: each step's plan says all that there is to know.
"""
