"""From what an engine exports to what limits it: `scrape` < `facts` < `findings`. Pure, and knows no server.

`octavo doctor`, `octavo top` and the server's own `/load` say the same sentences because they are made here.
"""
