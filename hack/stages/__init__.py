"""The stages of `make test`: which there are, which may run beside which, and what became of each.

`plan` names them, `order` decides what begins next, `running` does it, `reading` reads what tests report, and `telling`
says at the end where the time went. A stage is a process like any other: it knows nothing of the others.
"""
