"""Which tokens of which requests the next step computes, and which KV blocks hold them. Pure Python: no tensors, no
clock.

`block_pool` < `prefix_cache` < `kv_cache` < `scheduler`, each using only those before it.
"""
