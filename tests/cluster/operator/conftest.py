"""The resource's definition, a fake engine's image, and operators as local processes under their real roles."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterator

import pytest

import fake_engine
from cluster_api import administrator, has_condition
from cluster_tools import Kubectl, create, wait_for
from node import config
from operator_process import OperatorProcess, Services
from stage import Stage

CRD = config.CHECKOUT / "crds" / "inferenceservices.octavo.dev.yaml"
DEFINITION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/inferenceservices.octavo.dev"


@pytest.fixture(scope="session")
def engine_image(cluster: config.Settings) -> str:
    return fake_engine.ensure_image(cluster)


@pytest.fixture(scope="session")
def definition(kubectl: Kubectl) -> None:
    kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRD))
    # Not `kubectl wait`: for a definition so new that it has no conditions yet, it fails instead of waiting.
    wait_for(lambda: has_condition(administrator().get(DEFINITION), "Established"), "the definition is served")


@pytest.fixture
def make_operator(
    kubectl: Kubectl, cluster: config.Settings, definition: None, engine_image: str
) -> Iterator[Callable[..., OperatorProcess]]:
    """Makes operators that end with the test."""
    made: list[OperatorProcess] = []

    def make(*namespaces: str) -> OperatorProcess:
        made.append(OperatorProcess(kubectl, cluster, list(namespaces), engine_image))
        return made[-1]

    yield make
    for operator in made:
        operator.kill()
        sys.stdout.write(operator.log()[-4000:])  # seen where the test has failed


@pytest.fixture
def stage(cluster: config.Settings, namespace: str, make_operator: Callable[..., OperatorProcess]) -> Iterator[Stage]:
    """A fault proxy with an operator behind it, not yet started."""
    made = Stage(cluster, namespace, make_operator)
    yield made
    made.close()


@pytest.fixture(scope="module")
def shared(
    kubectl: Kubectl, cluster: config.Settings, definition: None, engine_image: str
) -> Iterator[tuple[Services, OperatorProcess]]:
    """One running operator and its namespace, for all tests of a module that do not stop it."""
    name = f"operator-{uuid.uuid4().hex[:8]}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    create(kubectl, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    operator = OperatorProcess(kubectl, cluster, [name], engine_image).start()
    wait_for(operator.leads, "the operator's start")
    yield Services(kubectl, name), operator
    operator.kill()
    kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def services(shared: tuple[Services, OperatorProcess]) -> Services:
    return shared[0]


@pytest.fixture
def operator(shared: tuple[Services, OperatorProcess]) -> OperatorProcess:
    return shared[1]
