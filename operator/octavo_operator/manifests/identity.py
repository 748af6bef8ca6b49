"""Who the pods are to the API server: nobody."""

from __future__ import annotations

from octavo_operator.manifests.child import SERVICE_ACCOUNT, Manifest, metadata


def service_account(resource: Manifest) -> Manifest:
    """An account of the service's own, with no role and no token mounted.

    The namespace's default account may have been given roles; an engine that runs strangers' prompts gets none.
    """
    return {
        "apiVersion": SERVICE_ACCOUNT[0],
        "kind": SERVICE_ACCOUNT[1],
        "metadata": metadata(resource),
        "automountServiceAccountToken": False,
    }
