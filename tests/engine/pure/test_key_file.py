"""Files of keys: what a line may be, what is refused and how it is told, and what happens when they change."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from octavo_engine.config import ServerConfig
from octavo_engine.errors import InvalidConfiguration
from octavo_engine.metrics import WatchedFile
from octavo_engine.server.auth import KeyRing
from octavo_engine.server.door import open_door
from octavo_engine.server.key_file import MAX_KEYS, KeyLimits, KeysInvalid, parse_keys

DEFAULTS = KeyLimits(max_concurrent_requests=4, tokens_per_minute=1000)
TEAM = '{"key": "old", "name": "team-a", "tokens_per_minute": 10}'


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_bare_keys_and_objects_stand_side_by_side() -> None:
    text = f'# ours\nplain\n\n  {TEAM}\n{{"key": "free", "max_concurrent_requests": null, "tokens_per_minute": null}}\n'
    plain, team, free = parse_keys(text, DEFAULTS)
    assert plain.limits == DEFAULTS
    assert (team.name, team.limits) == ("team-a", KeyLimits(max_concurrent_requests=4, tokens_per_minute=10))
    assert not free.limits.any, "null is no limit, where what is left out is the server's"
    assert len({key.namespace for key in (plain, team, free)}) == 3
    assert "plain" not in repr(plain)


def test_a_key_and_the_one_that_replaces_it_may_have_one_name() -> None:
    old, new = parse_keys(TEAM + "\n" + TEAM.replace("old", "new") + "\n", DEFAULTS)
    assert old.name == new.name
    assert old.namespace != new.namespace
    assert len(parse_keys("same\nsame\n", DEFAULTS)) == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{secret", "line 1: it is no JSON object"),
        ('ok\n{"key": "secret", "nonsense": 1}', "line 2: it is no JSON object"),
        ('{"key": "secret", "secret": 1}', "line 1: it is no JSON object"),
        ('{"name": "secret"}', "line 1: key: "),
        ('{"key": ""}', "line 1: key: "),
        ('{"key": "secret with spaces"}', "line 1: key: "),
        ('{"key": "secret", "name": "a b"}', "line 1: name: "),
        ('{"key": "secret", "name": ""}', "line 1: name: "),
        ('{"key": "secret", "tokens_per_minute": 0}', "line 1: tokens_per_minute: "),
        ('{"key": "secret", "tokens_per_minute": "7"}', "line 1: tokens_per_minute: "),
        ('{"key": "secret", "requests_per_minute": 1.5}', "line 1: requests_per_minute: "),
        ('{"key": "secret", "max_concurrent_requests": true}', "line 1: max_concurrent_requests: "),
        (f'{TEAM}\n{{"key": "old", "name": "other"}}', "line 2: a line before has the same key"),
        (f'{TEAM}\n{{"key": "new", "name": "team-a"}}', "line 2: a line before has the same name"),
        ("\n".join(f"secret-{n}" for n in range(MAX_KEYS + 1)), f"more than {MAX_KEYS} keys"),
    ],
)
def test_what_is_wrong_is_told_by_its_line_and_not_by_what_it_says(text: str, told: str) -> None:
    with pytest.raises(KeysInvalid) as refused:
        parse_keys(text, DEFAULTS)
    assert str(refused.value).startswith(told)
    assert "secret" not in str(refused.value)


def test_a_wrong_file_prevents_a_start_and_does_not_end_a_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, clock, told = tmp_path / "keys", Clock(), []
    path.write_text("first\n")
    ring = KeyRing((), str(path), clock, on_reload=told.append)
    path.write_text("second\n{broken secret\n")
    with pytest.raises(InvalidConfiguration, match=r"--api-key-file .*: line 2: it is no JSON object"):
        open_door(ServerConfig(api_key_file=str(path)), {})
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            clock.now += 2
            assert ring.identify("Bearer first") is not None, "the keys read before stay"
            assert ring.identify("Bearer second") is None
    assert (told, caplog.text.count("line 2")) == ([False], 1), "told once, not with each request"
    assert "secret" not in caplog.text
    path.write_bytes(b"\xff\n")
    clock.now += 2
    assert ring.identify("Bearer first") is not None
    path.write_text("second\n")
    clock.now += 2
    assert ring.identify("Bearer first") is None
    assert ring.identify("Bearer second") is not None
    assert told == [False, False, True]


def test_keys_arrive_as_the_kubelet_writes_them(tmp_path: Path) -> None:
    """Of a mounted Secret the file is a link into `..data`, a link to a directory; an update turns that link."""
    clock, told = Clock(), []
    (tmp_path / "..first").mkdir()
    (tmp_path / "..first" / "api-keys").write_text("old-key-1\n")
    (tmp_path / "..data").symlink_to("..first")
    (tmp_path / "api-keys").symlink_to(Path("..data", "api-keys"))
    config = ServerConfig(api_key_file=str(tmp_path / "api-keys"))
    ring = open_door(config, {}, lambda file, taken: told.append((file, taken))).keys
    ring._clock, ring._checked = clock, clock()
    assert ring.identify("Bearer old-key-1") is not None
    (tmp_path / "..second").mkdir()
    # As long and as old as the first: only which file it is has changed.
    (tmp_path / "..second" / "api-keys").write_text("new-key-2\n")
    times = os.stat(tmp_path / "..first" / "api-keys")
    os.utime(tmp_path / "..second" / "api-keys", ns=(times.st_atime_ns, times.st_mtime_ns))
    (tmp_path / "..data_tmp").symlink_to("..second")
    os.rename(tmp_path / "..data_tmp", tmp_path / "..data")
    clock.now += 2
    assert ring.identify("Bearer old-key-1") is None
    assert ring.identify("Bearer new-key-2") is not None
    assert told == [(WatchedFile.API_KEYS, True)]


def test_what_the_file_says_of_a_key_holds_where_a_flag_names_it_too(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(TEAM)
    config = ServerConfig(api_key=("old", "plain"), api_key_file=str(path), key_tokens_per_minute=500)
    keys = open_door(config, {"OCTAVO_API_KEY": "from-environment"}).keys
    named = {name: keys.identify(f"Bearer {name}") for name in ("old", "plain", "from-environment")}
    assert {name: key and key.limits.tokens_per_minute for name, key in named.items()} == {
        "old": 10,
        "plain": 500,
        "from-environment": 500,
    }


@pytest.mark.parametrize("limit", ["max_concurrent_requests", "requests_per_minute", "tokens_per_minute"])
def test_limits_of_keys_need_keys(limit: str) -> None:
    config = ServerConfig(**{f"key_{limit}": 5})
    with pytest.raises(InvalidConfiguration, match=f"--key-{limit.replace('_', '-')} is a limit of keys"):
        open_door(config, {})
    assert open_door(config, {"OCTAVO_API_KEY": "k"}).keys.required
