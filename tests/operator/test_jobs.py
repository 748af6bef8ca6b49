"""Jobs and fetched models as manifests: what runs, what it may reach, where things lie; and what programs report."""

import pytest

from octavo_operator import engine_args, fetch_args, manifests, names
from octavo_operator.checkpoint import Checkpoint, Progress, read_checkpoint, read_progress, read_report
from octavo_operator.manifests import loader_job, pod_template, preflight_job
from operator_samples import IMAGE, made_deployment, resource, spec_of

FOUND = Checkpoint("c0ffee", 10 << 20, 3)
STORE = {
    "model": {"source": "s3://bucket/prefix", "credentialsSecretRef": {"name": "store"}, "endpoint": "http://s3.store"},
    "cache": {"persistentVolumeClaim": "models"},
    "auth": {"apiKeySecretRef": {"name": "keys", "key": "k"}},
    "resources": {"limits": {"nvidia.com/gpu": "1", "memory": "8Gi"}},
    "template": {
        "nodeSelector": {"zone": "a"},
        "runtimeClassName": "nvidia",
        "labels": {"team": "x"},
        "affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 1, "podAffinityTerm": {"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}}}]}},
        "volumes": [
            {"name": "ca", "mountPath": "/etc/ssl/certs", "configMap": {"name": "ca"}},
            {"name": "scratch", "mountPath": "/data", "emptyDir": {"sizeLimit": "1Gi"}},
        ],
    },
}  # fmt: skip
HUB = {"model": {"source": "hf://org/name", "revision": "v1", "tokenSecretRef": {"name": "hub", "key": "t"}}}


def made(kind, **spec):
    parent, read = resource(**spec), spec_of(**spec)
    if kind == "loader":
        return loader_job(parent, read, IMAGE, "rev1", FOUND, group=65532)
    return preflight_job(parent, read, IMAGE, "rev1")


def pod_of(kind, **spec):
    if kind == "engine":
        return pod_template(spec_of(**spec), "assistant", IMAGE, "rev1", FOUND)["spec"]
    return made(kind, **spec)["spec"]["template"]["spec"]


@pytest.mark.parametrize("kind", ["engine", "preflight", "loader"])
@pytest.mark.parametrize("spec", [{}, STORE, HUB], ids=["local", "store", "hub"])
def test_every_pod_is_restricted_and_asks_no_token(kind, spec):
    pod = pod_of(kind, **spec)
    assert pod["automountServiceAccountToken"] is False
    assert pod["serviceAccountName"] == "assistant"
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        security = container["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["readOnlyRootFilesystem"] is True
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert {mount["name"] for mount in container["volumeMounts"]} <= {volume["name"] for volume in pod["volumes"]}
    assert len({volume["name"] for volume in pod["volumes"]}) == len(pod["volumes"])


@pytest.mark.parametrize(
    ("group", "wanted"), [(1000, {"fsGroup": 1000, "fsGroupChangePolicy": "OnRootMismatch"}), (None, {})]
)
def test_who_may_write_into_the_cache_can_be_left_to_the_cluster(group, wanted):
    job = loader_job(resource(**STORE), spec_of(**STORE), IMAGE, "rev1", FOUND, group=group)
    security = job["spec"]["template"]["spec"]["securityContext"]
    assert {key: value for key, value in security.items() if key.startswith("fsGroup")} == wanted


@pytest.mark.parametrize("kind", ["preflight", "loader"])
def test_a_job_serves_nobody_and_ends(kind):
    job = made(kind, **STORE)
    template, pod = job["spec"]["template"], job["spec"]["template"]["spec"]
    labels = template["metadata"]["labels"].items()
    for selector in (names.selector_labels("assistant"), {"team": "x"}):
        assert not selector.items() <= labels
    assert names.common_labels("assistant").items() <= labels
    assert "nvidia.com/gpu" not in str(pod["containers"][0]["resources"])
    assert "runtimeClassName" not in pod
    assert pod["restartPolicy"] == "Never"
    assert pod["nodeSelector"] == {"zone": "a"}
    assert job["spec"]["activeDeadlineSeconds"] >= 1800
    assert job["spec"]["ttlSecondsAfterFinished"] > 0
    assert len(pod["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]) == 2


def test_jobs_of_other_revisions_and_purposes_have_other_names():
    parent, read = resource("x" * 60), spec_of(**STORE)
    jobs = [preflight_job(parent, read, IMAGE, "rev1"), preflight_job(parent, read, IMAGE, "rev2")]
    jobs.append(loader_job(parent, read, IMAGE, "rev1", FOUND, group=65532))
    found = {job["metadata"]["name"] for job in jobs}
    assert len(found) == 3
    assert all(len(name) <= 63 for name in found)


def test_credentials_are_files_of_those_who_need_them_alone():
    engine, loader, preflight = (pod_of(kind, **STORE) for kind in ("engine", "loader", "preflight"))
    assert "store" not in str(engine["volumes"])
    for pod in (loader, preflight):
        volume = next(volume for volume in pod["volumes"] if volume["name"] == "credentials")
        assert volume["secret"] == {"secretName": "store"}
    assert "keys" not in str(loader["volumes"])
    fetching = pod_of("engine", **HUB)
    assert "token" not in [mount["name"] for mount in fetching["containers"][0]["volumeMounts"]]
    assert "token" in [mount["name"] for mount in fetching["initContainers"][0]["volumeMounts"]]


def test_a_preflight_needs_whatever_the_engine_needs():
    """A Secret, a ConfigMap or a claim that is not there holds the check and no replica."""
    mounted = {mount["mountPath"] for mount in pod_of("preflight", **STORE)["containers"][0]["volumeMounts"]}
    assert {"/etc/ssl/certs", "/data", engine_args.KEYS_DIRECTORY} <= mounted
    claims = [volume for volume in pod_of("preflight")["volumes"] if "persistentVolumeClaim" in volume]
    assert claims[0]["persistentVolumeClaim"] == {"claimName": "models", "readOnly": True}


def test_a_replica_that_fetches_reads_what_it_fetched():
    pod = pod_of("engine", **HUB)
    (loader,), (engine,) = pod["initContainers"], pod["containers"]
    target = next(arg.partition("=")[2] for arg in loader["args"] if arg.startswith("--destination="))
    assert f"--model={target}" in engine["args"]
    assert "--revision=c0ffee" in loader["args"], "pinned to what the preflight found"
    mounts = {container["name"]: container["volumeMounts"] for container in (loader, engine)}
    assert {"name": "model", "mountPath": "/models"} in mounts["loader"]
    assert {"name": "model", "mountPath": "/models", "readOnly": True} in mounts["engine"]
    volume = next(volume for volume in pod["volumes"] if volume["name"] == "model")
    assert volume["emptyDir"] == {"sizeLimit": "74Mi"}
    twice = made_deployment(resource(**HUB))["spec"]["progressDeadlineSeconds"]
    assert twice > 2 * 1800 > made_deployment(resource())["spec"]["progressDeadlineSeconds"] > 1800


def test_a_cache_is_written_by_the_loader_and_read_by_replicas():
    loader, engine = pod_of("loader", **STORE), pod_of("engine", **STORE)
    assert "initContainers" not in engine
    claims = [
        next(volume["persistentVolumeClaim"] for volume in pod["volumes"] if volume["name"] == "model")
        for pod in (loader, engine)
    ]
    assert claims == [{"claimName": "models"}, {"claimName": "models", "readOnly": True}]
    target = next(arg.partition("=")[2] for arg in loader["containers"][0]["args"] if arg.startswith("--destination="))
    assert f"--model={target}" in engine["containers"][0]["args"]
    assert loader["securityContext"]["fsGroup"]


def test_a_cache_has_a_folder_for_each_state_of_a_source():
    def folder(revision="rev1", found=FOUND, **spec):
        return fetch_args.model_folder(spec_of(**(STORE | spec)), revision, found)

    assert folder() == folder(revision="rev2"), "another revision of the spec finds the same model there"
    assert folder() != folder(found=Checkpoint("decade", 1, 1))
    assert folder() != folder(model={"source": "s3://bucket/other"})
    assert folder(found=Checkpoint()) != folder("rev2", Checkpoint()), "unpinned: fetched anew"


def test_memory_is_checked_where_it_is_the_containers():
    own = pod_of("preflight", resources={"limits": {"memory": "2Gi"}})["containers"][0]["args"]
    assert f"--memory-bytes={2 << 30}" in own
    assert not [arg for arg in pod_of("preflight", **STORE)["containers"][0]["args"] if "memory-bytes" in arg]


def test_the_users_volumes_are_read_only_and_meet_none_of_ours():
    pod = pod_of("engine", template={"volumes": [
        {"name": "tmp", "mountPath": "/a", "persistentVolumeClaim": {"claimName": "c"}},
        {"name": "model", "mountPath": "/b", "secret": {"secretName": "s"}},
        {"name": "keys", "mountPath": "/c", "emptyDir": {}},
    ]})  # fmt: skip
    mounts = {mount["mountPath"]: mount.get("readOnly", False) for mount in pod["containers"][0]["volumeMounts"]}
    assert (mounts["/a"], mounts["/b"], mounts["/c"]) == (True, True, False)
    claim = next(volume for volume in pod["volumes"] if volume["name"] == "user-tmp")
    assert claim["persistentVolumeClaim"] == {"claimName": "c", "readOnly": True}


def test_replicas_are_spread_where_that_is_possible():
    spread = pod_of("engine")["topologySpreadConstraints"]
    assert [item["topologyKey"] for item in spread] == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
    assert {item["whenUnsatisfiable"] for item in spread} == {"ScheduleAnyway"}


def test_the_policy_keeps_the_way_to_the_model_that_still_runs():
    peers = manifests.ManagementPeers("octavo-system")
    before = manifests.network_policy(resource(**HUB), spec_of(**HUB), peers)["spec"]["egress"]
    running = spec_of(**HUB).model
    assert manifests.network_policy(resource(), spec_of(), peers, running)["spec"]["egress"] == before
    assert manifests.network_policy(resource(**HUB), spec_of(**HUB), peers, running)["spec"]["egress"] == before
    assert len(manifests.network_policy(resource(), spec_of(), peers)["spec"]["egress"]) < len(before)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ('{"revision": "abc", "bytes": 5, "files": 1}', Checkpoint("abc", 5, 1)),
        ('a warning\n{"revision": null, "bytes": 5, "files": 1}', Checkpoint("", 5, 1)),
        *((words, None) for words in ("", "all is well", "[]", '{"revision": "abc"}', '{"bytes": -1, "files": 1}')),
        ('{"revision": 7, "bytes": 1, "files": 1}', None),
        ('{"revision": "' + "x" * 300 + '", "bytes": 1, "files": 1}', None),
    ],
)
def test_what_a_preflight_reports(words, expected):
    assert read_report(words) == expected
    assert expected is None or read_checkpoint(expected.document()) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"bytes_done": 5, "bytes_total": 10, "phase": "downloading"}', Progress(5, 10)),
        (b'{"bytes_done": 15, "bytes_total": 10}', Progress(10, 10)),
        *((body, None) for body in (b"", b"[]", b"\xff", b'{"bytes_done": true, "bytes_total": 1}', b"[" * 60_000)),
    ],
)
def test_what_a_fetch_tells_of_its_progress(body, expected):
    assert read_progress(body) == expected


def test_what_holds_nothing_makes_no_difference():
    """It is of the same revision as what is absent: the pods must be the same, too."""
    empty = {
        "resources": {"requests": {}, "limits": {"memory": "1Gi"}},
        "template": {
            "affinity": {"nodeAffinity": {}, "podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
            "nodeSelector": {"gpu": ""},
        },
    }
    plain = {"resources": {"limits": {"memory": "1Gi"}}, "template": {"nodeSelector": {"gpu": ""}}}
    for kind in ("engine", "preflight"):
        assert pod_of(kind, **empty) == pod_of(kind, **plain)
    assert pod_of("engine", **plain)["nodeSelector"] == {"gpu": ""}
