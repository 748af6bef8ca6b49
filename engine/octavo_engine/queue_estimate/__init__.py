"""How long the prompts ahead of a newcomer will take: `speed`, `answers` and `seats` < `estimate`. Pure.

What is measured belongs to the machine and the model, or to one request, and never to the load as a whole: so it holds
for the next load, too, of another kind.
"""
