"""Who decides on the number of replicas: Octavo's rule, and peers with the rules of their documentation and code."""
