"""The Deployment of engine pods and their template."""

from __future__ import annotations

from octavo_operator import engine_args, fetch_args, names
from octavo_operator.checkpoint import Checkpoint
from octavo_operator.manifests import pods, volumes
from octavo_operator.manifests.child import DEPLOYMENT, Manifest, metadata
from octavo_operator.spec import Spec

_SURGE = {"maxSurge": 1, "maxUnavailable": 0}
_IN_PLACE = {"maxSurge": 0, "maxUnavailable": 1}
_PROGRESS_MARGIN_SECONDS = 120


def deployment(
    resource: Manifest, template: Manifest, *, revision: str, replicas: int, in_place: bool = False
) -> Manifest:
    """The Deployment of engine pods.

    Args:
        template: of the pods, as it was rendered when the revision was new.
        revision: what the template was rendered from, which may be older than the spec.
        replicas: how many, decided elsewhere.
        in_place: an old pod stops before a new one starts; otherwise a new one serves before an old one goes.
    """
    head = metadata(resource)
    head["annotations"][names.REVISION] = revision
    return {
        "apiVersion": DEPLOYMENT[0],
        "kind": DEPLOYMENT[1],
        "metadata": head,
        "spec": {
            "replicas": replicas,
            "revisionHistoryLimit": 3,
            "progressDeadlineSeconds": _progress_seconds(template),
            "selector": {"matchLabels": names.selector_labels(resource["metadata"]["name"])},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": _IN_PLACE if in_place else _SURGE},
            "template": template,
        },
    }


def pod_template(
    spec: Spec, parent: str, image: str, revision: str = "", checkpoint: Checkpoint | None = None
) -> Manifest:
    """The engine pod.

    Args:
        image: used when the spec names none.
        revision: of the spec; checkpoint: what a preflight found. Both for models that are fetched.
    """
    wish = spec.template
    image = spec.engine.image or image
    found = checkpoint or Checkpoint()
    folder = fetch_args.model_folder(spec, revision, found)
    mounted = [*volumes.scratch(), *volumes.exchange(spec), *volumes.model(spec, found), *volumes.keys(spec)]
    mounted += volumes.wished(spec)
    helpers, all_volumes = [], list(mounted)
    if spec.model.remote and spec.cache is None:
        fetcher, its = pods.loader(spec, image, folder, found)
        helpers, all_volumes = [fetcher], _distinct([*mounted, *its])
    annotations = {**(wish.annotations or {}), names.PARENT_ANNOTATION: parent}
    if spec.restarted_at:
        annotations[names.RESTARTED_ANNOTATION] = spec.restarted_at
    return {
        "metadata": {"labels": {**(wish.labels or {}), **names.own_labels(parent)}, "annotations": annotations},
        "spec": pods.pod_spec(
            spec,
            parent,
            [_engine(spec, parent, image, folder, mounted)],
            all_volumes,
            initContainers=helpers,
            terminationGracePeriodSeconds=engine_args.grace_seconds(spec),
            runtimeClassName=wish.runtime_class_name,
            topologySpreadConstraints=[_spread(parent, key) for key in _DOMAINS],
        ),
    }


_DOMAINS = ("kubernetes.io/hostname", "topology.kubernetes.io/zone")


def _spread(parent: str, domain: str) -> Manifest:
    """Replicas of one revision apart where that is possible: the loss of a node or a zone shall not take them all."""
    return {
        "maxSkew": 1,
        "topologyKey": domain,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": names.selector_labels(parent)},
        "matchLabelKeys": ["pod-template-hash"],
    }


def _engine(spec: Spec, parent: str, image: str, folder: str, mounted: list[volumes.Mounted]) -> Manifest:
    return pods.container(
        names.CONTAINER,
        image,
        engine_args.COMMAND,
        engine_args.container_args(spec, parent, folder),
        mounted,
        env=engine_args.container_env(spec),
        ports=engine_args.container_ports(),
        resources=spec.resources.model_dump(exclude_none=True),
        lifecycle={"preStop": {"sleep": {"seconds": engine_args.PRE_STOP_SECONDS}}},
        **engine_args.probes(spec),
    )


def _distinct(mounted: list[volumes.Mounted]) -> list[volumes.Mounted]:
    """Containers share volumes: each once."""
    return list({volume["name"]: (volume, mount) for volume, mount in mounted}.values())


def _progress_seconds(template: Manifest) -> int:
    """As long as a replica may take to start; one that fetches its model has as long again for that."""
    probe = template["spec"]["containers"][0].get("startupProbe", {})
    seconds: int = probe.get("periodSeconds", 10) * probe.get("failureThreshold", 3)
    return seconds * (2 if "initContainers" in template["spec"] else 1) + _PROGRESS_MARGIN_SECONDS
