"""The charts and the kustomizations before a real API server: what they render is taken, and installed it works.

What can be said without a cluster is in `tests/contract/test_charts_render.py`.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import chart_samples
import pod_security
import releases
from chart_samples import deployment
from cluster_tools import Kubectl, create, wait_for
from node import config, images, schemas
from operator_process import Services
from patience import PATIENCE_SECONDS

NAME = "octavo-operator"
SERVICE = "steady"

Object = dict[str, Any]


def _text(path: Path) -> str:
    """What a file of /proc says; nothing where its process has ended."""
    try:
        return path.read_text()
    except OSError:
        return ""


def _signal(processes: list[int], number: int) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)


def bundle(items: list[Object]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


@pytest.fixture(scope="module")
def different() -> list[Object]:
    """Every object that some combination of values renders, once."""
    rendered = [chart_samples.rendered(values, "default") for values in chart_samples.combinations().values()]
    return [json.loads(item) for item in sorted({json.dumps(item) for items in rendered for item in items})]


def test_an_api_server_takes_what_every_combination_renders(kubectl: Kubectl, different: list[Object]) -> None:
    """Strictly: no unknown field, no warning."""
    flags = ("--dry-run=server", "--validate=strict")
    answer = kubectl("apply", *flags, "-f", "-", stdin=bundle(different))
    assert "Warning" not in answer
    assert len(answer.splitlines()) == len(different) > 30


def test_kubeconform_takes_it_by_the_api_servers_own_schemas(
    cluster: config.Settings, different: list[Object], tmp_path: Path
) -> None:
    """As a pipeline without a cluster would check it. What is wrong is found: the check itself can fail."""
    schemas.export(cluster, tmp_path)

    def verdict(items: list[Object]) -> Object:
        command: list[str | Path] = [
            config.HACK / "kubeconform",
            "-output=json",
            "-summary",
            f"-schema-location={tmp_path}/{schemas.LOCATION}",
        ]
        done = subprocess.run(
            command, input=bundle(items), capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
        )
        summary: Object = json.loads(done.stdout)["summary"]
        return summary

    assert verdict(different) == {"valid": len(different), "invalid": 0, "errors": 0, "skipped": 0}
    typing_error = json.loads(json.dumps(different[0]))
    typing_error["spec" if "spec" in typing_error else "metadata"]["unknown"] = 1
    assert verdict([typing_error])["invalid"] == 1


def test_the_api_server_and_our_check_agree_on_what_is_restricted(kubectl: Kubectl, namespace: str) -> None:
    """The operator's pod with any values is admitted; with any privilege it is not."""
    pods = [deployment(chart_samples.rendered(it))["spec"]["template"] for it in chart_samples.combinations().values()]
    pods += [pod_security.changed(pods[0], change) for change in pod_security.FINE.values()]
    pods += [pod_security.changed(pods[0], change) for change in pod_security.BREAKS.values()]
    named = [_bare(pod, f"pod-{number}", namespace) for number, pod in enumerate(pods)]
    answer = kubectl("create", "--dry-run=server", "-f", "-", stdin=bundle(named), check=False)
    refused = set(re.findall(r'pods "(pod-\d+)" is forbidden: violates PodSecurity "restricted', answer))
    assert refused == {pod["metadata"]["name"] for pod in named if pod_security.violations(pod)}
    assert len(refused) == len(pod_security.BREAKS), answer
    assert answer.count("Error from server") == len(refused), answer


def _bare(template: Object, name: str, namespace: str) -> Object:
    """A pod of a template, without the account that only an installed chart would have."""
    spec = {key: value for key, value in template["spec"].items() if key != "serviceAccountName"}
    head = template["metadata"] | {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": head, "spec": spec | {"automountServiceAccountToken": False}}


@pytest.mark.parametrize("folder", ["kustomize/cluster-wide", "kustomize/secret-policy", "kustomize/crds"])
def test_kustomizations_are_taken(kubectl: Kubectl, folder: str) -> None:
    """The namespaced one is installed for real, below."""
    place = str(config.CHECKOUT / folder)
    # A dry run makes no namespace for what would go into it.
    objects = kubectl("kustomize", place).replace("namespace: octavo-system", "namespace: default")
    flags = ("--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict")
    assert "Warning" not in kubectl("apply", *flags, "-f", "-", stdin=objects)


class Installation:
    """One namespace with an operator and a service that must not notice what happens to the operator."""

    def __init__(self, kubectl: Kubectl, namespace: str, operator_image: str, engine_image: str) -> None:
        self._kubectl = kubectl
        self.namespace = namespace
        self.services = Services(kubectl, namespace)
        self.operator_image, self.engine_image = operator_image, engine_image
        repository, _, tag = operator_image.rpartition(":")
        image = {"repository": repository, "tag": tag}
        self._flags = chart_samples.flags({"image": image, "engineImage": engine_image})

    def release(self, chart: Path, **values: Any) -> None:
        flags = [*self._flags, *chart_samples.flags(values)]
        releases.helm("upgrade", "--install", NAME, chart, "--namespace", self.namespace, "--reset-values", *flags)

    def rolled_out(self) -> None:
        rollout = ("rollout", "status", f"deployment/{NAME}", "-n", self.namespace, "--timeout=240s")
        answer = self._kubectl(*rollout, check=False)
        assert "successfully rolled out" in answer, answer + self.log()

    def log(self) -> str:
        return self._kubectl("logs", "-n", self.namespace, f"deployment/{NAME}", check=False)

    def operators(self) -> list[str]:
        selector = "app.kubernetes.io/name=octavo-operator"
        return self._kubectl("get", "pods", "-n", self.namespace, "-l", selector, "-o", "name").split()

    def leader(self) -> str:
        """Who holds the Lease."""
        return self._kubectl("get", "lease", NAME, "-n", self.namespace, "-o", "jsonpath={.spec.holderIdentity}")

    def kill(self, pod: str) -> None:
        """Ends a pod and all its processes at once."""
        where = ("pod", pod, "-n", self.namespace)
        uid = self._kubectl("get", *where, "-o", "jsonpath={.metadata.uid}")
        found = [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cgroup") if uid in _text(path)]
        assert found
        _signal(found, signal.SIGSTOP)  # it shall not hear of its deletion
        self._kubectl("delete", *where, "--wait=false")  # else the kubelet begins it again under the same name
        _signal(found, signal.SIGKILL)

    def traces(self) -> list[tuple[str, str, int]]:
        """What would change if a service's objects or pods were touched."""
        selector = f"octavo.dev/service={SERVICE}"
        kinds = "deployments,replicasets,pods,services,poddisruptionbudgets,networkpolicies"
        found = json.loads(self._kubectl("get", kinds, "-n", self.namespace, "-l", selector, "-o", "json"))["items"]
        heads = [item["metadata"] for item in found]
        return sorted((head["name"], head["uid"], head.get("generation", 0)) for head in heads)

    def serves(self) -> bool:
        """A pod answers, whoever looks after it."""
        path = "jsonpath={.items[0].status.podIP}"
        address = self._kubectl("get", "pods", "-n", self.namespace, "-l", f"octavo.dev/service={SERVICE}", "-o", path)
        with urllib.request.urlopen(f"http://{address}:8001/readyz", timeout=PATIENCE_SECONDS) as answer:
            return bool(answer.status == 200)

    def acts(self, name: str) -> None:
        """An operator is at work: a new service comes up and is sampled."""
        self.services.apply(name)

        def sampled() -> bool:
            serves = self.services.condition(name, "Ready").get("status") == "True"
            return serves and self.services.condition(name, "MetricsAvailable").get("status") == "True"

        try:
            wait_for(sampled, f"{name}: ready and sampled")
        except pytest.fail.Exception as error:
            status = (self.services.get("osvc", name) or {}).get("status")
            pytest.fail(f"{error}\n{json.dumps(status, indent=2)}\n{self.log()}", pytrace=False)


@pytest.fixture(scope="module")
def installation(
    kubectl: Kubectl, cluster: config.Settings, definition: None, engine_image: str
) -> Iterator[Installation]:
    name = f"charts-{uuid.uuid4().hex[:8]}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    create(kubectl, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    image = images.IMAGES["operator"]
    reference = images.load(cluster, image) if cluster.kubeconfig is None else image.reference
    yield Installation(kubectl, name, reference, engine_image)
    kubectl("delete", "namespace", name, "--wait=false")


# From here on in the order in which it happens to one installation.


def test_the_chart_installs_over_its_previous_revision(installation: Installation, tmp_path: Path) -> None:
    """Nothing in it may be immutable: Helm upgrades in place."""
    installation.release(releases.previous_revision(tmp_path))
    installation.release(releases.OPERATOR_CHART)
    installation.rolled_out()
    installation.acts(SERVICE)
    levels = {json.loads(line)["level"] for line in installation.log().splitlines()}
    assert levels <= {"info", "warning"}


def test_new_values_roll_the_operator_and_touch_no_service(installation: Installation) -> None:
    before, first = installation.traces(), set(installation.operators())
    installation.release(
        releases.OPERATOR_CHART,
        replicas=2,
        networkPolicy={"enabled": True},
        podAnnotations={"example.com/changed": "yes"},
        log={"format": "plain"},
    )
    installation.rolled_out()
    wait_for(lambda: len(installation.operators()) == 2 and not first & set(installation.operators()), "two new ones")
    installation.acts("after-upgrade")
    assert installation.traces() == before


@pytest.mark.skipif(
    config.Settings.from_environment().kubeconfig is not None, reason="processes of another cluster's pods are not here"
)
def test_the_standby_acts_when_the_leaders_pod_is_killed(installation: Installation) -> None:
    """As a power cut would do it: the leader says nothing, and its Lease has to run out first."""
    leader = installation.leader()
    assert leader in {pod.removeprefix("pod/") for pod in installation.operators()}
    installation.kill(leader)
    installation.services.apply("after-the-leader", replicas=0)
    wait_for(lambda: installation.services.get("deployment", "after-the-leader"), "the standby's work")
    assert installation.leader() not in ("", leader)
    installation.rolled_out()


def test_uninstalled_it_leaves_services_that_serve(installation: Installation, kubectl: Kubectl) -> None:
    before = installation.traces()
    releases.helm("uninstall", NAME, "--namespace", installation.namespace, "--wait", "--timeout=240s")
    wait_for(lambda: not installation.operators(), "the operators' end")
    assert installation.serves()
    assert installation.traces() == before
    assert kubectl("get", "roles,rolebindings,leases", "-n", installation.namespace, "-o", "name").split() == [
        f"lease.coordination.k8s.io/{NAME}"
    ]


def test_a_kustomization_takes_the_services_up_again(
    installation: Installation, kubectl: Kubectl, tmp_path: Path
) -> None:
    """The namespaced overlay, applied twice: the second time nothing changes."""
    before = installation.traces()
    environment = {"OCTAVO_OPERATOR_ENGINE_IMAGE": installation.engine_image}
    folder = releases.overlay(tmp_path, "namespaced", installation.namespace, installation.operator_image, environment)
    apply = ("apply", "--server-side", "--force-conflicts", "-k", str(folder))
    kubectl(*apply)
    installation.rolled_out()
    installation.acts("after-kustomize")
    assert installation.traces() == before
    path = "jsonpath={.metadata.generation}"
    where = ("get", "deployment", NAME, "-n", installation.namespace, "-o", path)
    generation = kubectl(*where)
    kubectl(*apply)
    assert kubectl(*where) == generation


def test_the_definition_outlives_its_chart(
    installation: Installation, kubectl: Kubectl, cluster: config.Settings
) -> None:
    """It lets the built-in roles cover services; uninstalled, it must not take every service of the cluster down."""
    if cluster.kubeconfig is not None:
        pytest.skip("the definition of a cluster that is not ours belongs to a release that is not ours")
    before, where = installation.traces(), ("--namespace", installation.namespace)
    releases.helm(
        "upgrade", "--install", "definitions", config.CHECKOUT / "charts" / "octavo-crds", *where, "--take-ownership"
    )
    for role, user in (("edit", "editor"), ("view", "viewer")):
        kubectl("create", "rolebinding", role, "-n", installation.namespace, f"--clusterrole={role}", f"--user={user}")

    def may(user: str, verb: str, what: str = "osvc") -> bool:
        return (
            kubectl("auth", "can-i", verb, what, f"--as={user}", "-n", installation.namespace, check=False) == "yes\n"
        )

    wait_for(lambda: may("editor", "create") and may("viewer", "get"), "the roles' aggregation")
    assert may("editor", "update", "osvc/scale")
    assert not may("viewer", "update", "osvc/scale")
    assert not may("viewer", "patch")
    releases.helm("uninstall", "definitions", *where)
    assert installation.services.get("osvc", SERVICE)
    assert installation.traces() == before
