"""`kubectl octavo`: what a person asks about a service, answered from what the cluster says.

It reaches the cluster through kubectl alone, so that contexts, credentials and plugins of the user's own work as they
are, and it writes nothing: `render` and `validate` need no cluster at all.
"""
