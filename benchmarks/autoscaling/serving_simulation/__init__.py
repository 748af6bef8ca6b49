"""A service in virtual time: engines, pods, clients and scaling policies, so that policies can be compared.

The policy that ships is imported, not copied: `policies.ours` calls `octavo_operator.autoscaling.decide`.
"""
