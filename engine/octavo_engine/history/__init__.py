"""What happened to requests, and why: recorded by the step thread for next to nothing, read by whoever asks.

`queue_log` < `timeline` < `recent`; `decisions` stands beside them. No prompt and no answer is kept here.
"""
