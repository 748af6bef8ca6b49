"""`kubectl octavo render`: what the operator would apply for a file, without a cluster. Pure."""

from __future__ import annotations

from typing import Any

from octavo_operator import desired, names
from octavo_operator.checkpoint import Checkpoint
from octavo_operator.desired import Defaults
from octavo_operator.manifests import Manifest, pod_template
from octavo_operator.observed import Purpose
from octavo_operator.revisions import History, Revision, revision_of
from octavo_operator.rollout import Phase, Rollout
from octavo_operator.spec import Spec, read_spec

_NO_UID = "00000000-0000-0000-0000-000000000000"


def rendered(resource: Manifest, defaults: Defaults, *, namespace: str, monitoring: bool) -> list[Manifest]:
    """Every child of a service whose revision is complete, and the Jobs that it passes before.

    What only a cluster gives stays out: the owner's UID, and with it owner references and seals.

    Args:
        namespace: of resources that name none.
        monitoring: as where the Prometheus Operator is installed.

    Raises:
        SpecError: the spec cannot be read; `validate` says more.
    """
    whole = resource | {"metadata": {"namespace": namespace, "uid": _NO_UID} | resource["metadata"]}
    spec = read_spec(whole)
    made = desired.children(
        *(whole, spec, _completed(whole, spec, defaults.image), defaults),
        replicas=_replicas(spec),
        monitoring=monitoring,
    )
    return [_as_written(child) for child in made]


def _completed(resource: Manifest, spec: Spec, image: str) -> Rollout:
    """As if every check had passed. A branch or tag stands where the operator would pin a commit."""
    wanted = revision_of(spec)
    checkpoint = Checkpoint(spec.model.revision or "") if spec.model.remote else Checkpoint()
    template = pod_template(spec, resource["metadata"]["name"], image, wanted, checkpoint)
    jobs = ((Purpose.PREFLIGHT,) if spec.model.remote else ()) + ((Purpose.LOADER,) if spec.cache else ())
    history = History(wanted, {wanted: Revision(template, True, checkpoint)})
    return Rollout(Phase.COMPLETE, wanted, wanted, template=template, jobs=jobs, checkpoint=checkpoint, history=history)


def _replicas(spec: Spec) -> int:
    if spec.scaler:
        return spec.scaler.min_replicas or 1
    return 1 if spec.replicas is None else spec.replicas


def _as_written(child: Manifest) -> dict[str, Any]:
    head = {key: value for key, value in child["metadata"].items() if key != "ownerReferences"}
    own = {key: value for key, value in head["annotations"].items() if key != names.RENDERED_ANNOTATION}
    return child | {"metadata": head | {"annotations": own}}
