"""Which tokens of which requests the next step computes, and which KV blocks hold them. Pure Python: no tensors, no
clock.

`block_pool` < `prefix_cache` < `kv_cache` hold the blocks; `request_heap` < `waiting` < `cache_aware` < `policy` say
who is next; `pace` says how much of a prompt a step may have beside decodes; `plan` is a step being decided.
`scheduler` is what others use.
"""
