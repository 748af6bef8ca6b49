"""What the operator tells `octavo fetch` and `octavo preflight`, read by their own parsers; what they tell back."""

import json

import pytest

from octavo_engine import cli
from octavo_engine.fetch import location
from octavo_engine.fetch.directory import Entry, Manifest
from octavo_engine.fetch.progress import Progress as EngineProgress
from octavo_engine.fetch.settings import FetchConfig
from octavo_engine.preflight.settings import PreflightSettings
from octavo_operator import engine_args, fetch_args, names
from octavo_operator.checkpoint import Checkpoint, Progress, read_progress, read_report
from octavo_operator.manifests import jobs
from octavo_operator.spec import read_spec
from operator_samples import resource

pytestmark = pytest.mark.contract

FOUND = Checkpoint("c0ffee", 1, 1)
HUB = {
    "source": "hf://org/name",
    "revision": "v1",
    "endpoint": "http://hub:8080",
    "tokenSecretRef": {"name": "s", "key": "k"},
}
STORE = {"source": "s3://bucket/prefix", "endpoint": "http://s3:9000", "credentialsSecretRef": {"name": "s"}}
SOURCES = [
    *("hf://org/name", "hf://org/name/model-q4.gguf", "s3://bucket/a/prefix", "gs://bucket/prefix"),
    *("https://host.example/models/m", "oci://registry.example:5000/org/name:tag"),
    "oci://registry.example/org/name@sha256:" + "0" * 64,
]


def spec_of(**spec):
    return read_spec(resource(**spec))


def fetched(model):
    return FetchConfig.parse(fetch_args.fetch_args(spec_of(model=model), "model", FOUND))


def checked(**spec):
    return PreflightSettings.parse(fetch_args.preflight_args(spec_of(**spec), "assistant"))


def test_a_fetch_is_told_where_from_where_to_and_what():
    found = fetched(HUB)
    assert (found.source, found.revision, found.endpoint) == ("hf://org/name", "c0ffee", "http://hub:8080")
    assert found.destination == "/models/model"
    assert found.token_file == f"{fetch_args.TOKEN_DIRECTORY}/{fetch_args.TOKEN_FILE}"
    assert (found.management_host, found.management_port) == ("0.0.0.0", names.MANAGEMENT_PORT)  # noqa: S104
    assert fetched(STORE).credentials_directory == fetch_args.CREDENTIALS_DIRECTORY


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_of_the_schema_is_one_of_the_engine(source):
    assert location.parse(fetched({"source": source}).source).scheme == spec_of(model={"source": source}).model.scheme


def test_a_preflight_looks_at_the_source_and_reads_the_engines_arguments():
    found = checked(model=HUB, engine={"maxNumSeqs": 7}, resources={"limits": {"memory": "2Gi"}})
    assert (found.config.source, found.config.revision) == ("hf://org/name", "v1")
    assert found.config.memory_bytes == 2 << 30
    assert found.serve.engine.max_num_seqs == 7


def test_a_model_that_is_there_is_looked_at_where_it_is():
    found = checked()
    assert found.config.source == ""
    assert found.serve.engine.model == engine_args.model_path(spec_of())


def test_reports_and_progress_are_read_as_they_are_written(capsys):
    manifest = Manifest("hf://org/name", "c0ffee", (Entry("a", 3, "i", "size"), Entry("b", 4, "j", "size")))
    cli._succeed({"revision": manifest.revision, "bytes": manifest.total_bytes, "files": len(manifest.files)})
    assert read_report(capsys.readouterr().out) == Checkpoint("c0ffee", 7, 2)
    progress = EngineProgress()
    progress.start("c0ffee", 2, 10)
    progress.received(4)
    assert read_progress(json.dumps(progress.document()).encode()) == Progress(4, 10)


def test_only_what_a_person_must_change_fails_a_job_at_once():
    assert jobs._EXIT_FOR_GOOD == cli.CANNOT_WORK != cli.MAY_WORK_LATER


def test_commands_exist():
    for command, words in ((fetch_args.FETCH, "fetch"), (fetch_args.PREFLIGHT, "preflight")):
        assert command == ["octavo", words]
        assert f"octavo {words} " in cli.USAGE
