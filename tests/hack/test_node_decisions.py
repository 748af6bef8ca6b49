"""What hack/ decides before it acts: which images stay, what kind is told, what a schema refuses, what is pinned."""

from __future__ import annotations

import fcntl
import re
from pathlib import Path

import pytest

from node import builder, config, images, kind, mounts, programs, retention, schemas, shell
from node.config import Settings
from node.shell import CommandError


def prometheus_module() -> str:
    """Prometheus 3.x.y is the module v0.(300 + x).y."""
    _, minor, patch = config.PROMETHEUS_VERSION.split(".")
    return f"0.{300 + int(minor)}.{patch}"


PINNED = {
    "github.com/coredns/coredns": config.COREDNS_VERSION,
    "github.com/prometheus/prometheus": prometheus_module(),
    "github.com/yannh/kubeconform": config.KUBECONFORM_VERSION,
    "helm.sh/helm/v3": config.HELM_VERSION,
    "k8s.io/kubernetes": config.KUBERNETES_VERSION,
    "sigs.k8s.io/cli-utils": config.KSTATUS_VERSION,
    "sigs.k8s.io/kind": config.KIND_VERSION,
}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state=tmp_path / "state", cache=tmp_path / "cache", kubeconfig=None)


def pins(module: Path) -> dict[str, str]:
    """Modules and versions that a go.mod requires."""
    return dict(re.findall(r"^(?:require|\t)\s*(\S+) v(\S+)", (module / "go.mod").read_text(), re.MULTILINE))


def test_programs_carry_the_versions_that_their_modules_pin() -> None:
    assert pins(programs.SOURCES).items() >= PINNED.items()
    assert pins(programs.METRICS_SERVER.module)["sigs.k8s.io/metrics-server"] == config.METRICS_SERVER_VERSION
    assert pins(programs.S3.module)["github.com/rclone/rclone"] == config.S3_VERSION


def test_metrics_server_shares_all_versions_but_its_own_so_that_it_is_built_in_seconds() -> None:
    own, shared = pins(programs.METRICS_SERVER.module), pins(programs.SOURCES)
    differing = {module for module, version in own.items() if shared.get(module) != version}
    assert differing == {"sigs.k8s.io/metrics-server", "github.com/prometheus/prometheus"}


def test_the_newest_two_images_stay_and_those_of_the_last_hour() -> None:
    hours = {"a": 100.0, "b": 3.0, "c": 2.0, "d": 0.5, "e": 0.1}
    now = 1_000_000.0
    assert retention.stay({name: now - 3600 * ago for name, ago in hours.items()}, now) == {"d", "e"}
    assert retention.stay({"a": 0.0, "b": 1.0, "c": 2.0}, now) == {"b", "c"}
    assert retention.stay(dict.fromkeys("abc", now - 60), now) == {"a", "b", "c"}


def test_when_room_is_short_only_images_stay_that_somebody_is_about_to_start() -> None:
    minutes = {"a": 100.0, "b": 11.0, "c": 9.0, "d": 0.0}
    assert retention.just_asked({name: 6000.0 - 60 * ago for name, ago in minutes.items()}, 6000.0) == {"c", "d"}


def test_kind_without_a_docker_engine_is_refused_with_the_remedy(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(shell.NodeError, match=r"kind needs a Docker engine.*without --kind"):
        kind.up(settings)


def test_kind_makes_its_cluster_once_and_leaves_the_persons_kubeconfig_alone(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[list[str]] = []

    def run(argv: list[object], **_: object) -> str:
        called.append([str(item) for item in argv[1:]])
        return "octavo\n" if ["create", "cluster"] in (call[:2] for call in called[:-1]) else "other\n"

    monkeypatch.setattr(kind, "docker_runs", lambda: True)
    monkeypatch.setattr(kind, "run", run)
    monkeypatch.setattr(kind.binaries, "built", lambda *_: Path("kind"))
    place = kind.up(settings)
    place.touch()
    kind.up(settings)
    kind.load(settings, "localhost/octavo-engine:1")
    kubeconfig = f"--kubeconfig={settings.cache}/kind/kubeconfig"
    assert called == [
        ["get", "clusters"],
        ["create", "cluster", "--name=octavo", kubeconfig, "--wait=300s"],
        ["get", "clusters"],
        ["load", "docker-image", "localhost/octavo-engine:1", "--name=octavo"],
    ]


def test_only_the_kind_clusters_kubeconfig_means_kind(settings: Settings) -> None:
    assert not kind.meant(settings)
    assert kind.meant(Settings(settings.state, settings.cache, settings.cache / "kind" / "kubeconfig"))


def test_schemas_hold_all_they_refer_to_and_refuse_unknown_fields() -> None:
    kind_of = {"group": "apps.example.org", "kind": "Thing", "version": "v1"}
    document = {
        "components": {
            "schemas": {
                "Thing": {
                    "type": "object",
                    "properties": {
                        "kind": {"type": "string"},
                        "metadata": {"allOf": [{"$ref": "#/components/schemas/Meta"}]},
                        "free": {
                            "type": "object",
                            "x-kubernetes-preserve-unknown-fields": True,
                            "properties": {"a": {}},
                        },
                    },
                    "x-kubernetes-group-version-kind": [kind_of],
                },
                "Meta": {"type": "object", "properties": {"name": {"type": "string"}}},
                "Other": {"type": "object"},
            }
        }
    }
    ((name, schema),) = schemas.kinds(document)
    held = schema["components"]["schemas"]
    assert name == "thing-apps-v1.json"
    assert held.keys() == {"Thing", "Meta"}
    assert held["Thing"]["additionalProperties"] is False
    assert held["Meta"]["additionalProperties"] is False
    assert "additionalProperties" not in held["Thing"]["properties"]["free"]


def test_an_own_programs_key_changes_with_its_source(tmp_path: Path) -> None:
    (tmp_path / "tool").mkdir()
    source = tmp_path / "tool" / "main.go"
    keys = set()
    for text in ("package main", "package main // changed"):
        source.write_text(text)
        keys.add(programs.Program("tool", "1", "./tool", module=tmp_path).key)
    assert len(keys) == 2


MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
31 22 0:26 / /var/lib/node rw - tmpfs tmpfs rw
40 22 0:45 / /var/cache/store/overlay rw - ext4 /dev/vda rw
41 40 0:46 / /var/cache/store/overlay/a\\040b/merged rw - overlay overlay rw,lowerdir=/x
42 22 0:47 / /var/cache/storehouse rw - xfs /dev/vdb rw
"""


def test_mounts_below_a_folder_are_taken_from_the_inside_out():
    found = mounts.below(Path("/var/cache/store"), MOUNTS)
    assert found == [Path("/var/cache/store/overlay/a b/merged"), Path("/var/cache/store/overlay")]
    assert mounts.below(Path("/var/cache/store/overlay"), MOUNTS) == found
    assert mounts.below(Path("/srv"), MOUNTS) == []


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/", "ext4"),
        ("/var/lib", "ext4"),
        ("/var/lib/node/kubelet", "tmpfs"),
        ("/var/cache/storehouse/x", "xfs"),
        ("/var/cache/store/overlay/a b/merged/etc", "overlay"),
    ],
)
def test_a_folder_is_on_the_nearest_mount_above_it(folder, kind):
    assert mounts.filesystem(Path(folder), MOUNTS) == kind
    assert mounts.filesystem(Path(folder), "") == ""


def free(lock: Path) -> bool:
    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_one_at_a_time_uses_the_builders_store(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build takes away what is at work there, and so would take it from under another's hands."""
    seen: list[tuple[str, bool]] = []

    def buildah(_: Settings, verb: str, *arguments: str, log: Path | None = None) -> str:
        was = [other for other, _ in seen]
        seen.append((verb, free(settings.cache / "buildah.lock")))
        if verb != "rm" or was.count("rm") % 2:  # the second sweep of each turn fails, too
            raise CommandError(f"{verb} failed")
        return ""

    (settings.cache / "buildah").mkdir(parents=True)
    monkeypatch.setattr(builder, "buildah", buildah)
    monkeypatch.setattr(builder, "_make_base", lambda _: buildah(settings, "base"))
    monkeypatch.setattr(builder.prerequisites, "ensure_tools", lambda _: None)
    image = images.IMAGES["engine"]
    with pytest.raises(CommandError, match="base failed"):
        builder.ensure_base(settings)
    with pytest.raises(CommandError, match="build failed"):
        builder.build(settings, image.dockerfile, image.reference, settings.cache / "log")
    with pytest.raises(CommandError, match="rmi failed"):
        builder.remove_unnamed(settings)
    assert [verb for verb, _ in seen] == ["rm", "inspect", "base", "rm", "rm", "build", "rm", "rm", "rmi", "rm"]
    assert not any(is_free for _, is_free in seen)
    assert free(settings.cache / "buildah.lock")


def test_a_turn_takes_away_what_a_killed_build_had_packed_and_leaves_the_store(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builder, "buildah", lambda *_: "")
    folders = ["storage", "run", "buildah-cache", "buildah1461323393", "storage77", "container_images_storage5"]
    for folder in folders:
        (settings.cache / "buildah" / folder).mkdir(parents=True)
    with builder.clean_store(settings):
        left = {folder.name for folder in (settings.cache / "buildah").iterdir()}
    assert left == {"storage", "run", "buildah-cache"}
