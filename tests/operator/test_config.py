"""Settings: flag over environment over default; what is wrong is named."""

import dataclasses
import tomllib
from pathlib import Path

import pytest

import octavo_operator
from octavo_operator import cli
from octavo_operator.config import ENV_PREFIX, OperatorConfig, labels, read_config
from octavo_operator.errors import ConfigError


def read(*arguments, **environment):
    flags = vars(cli.build_parser().parse_args(["run", *arguments]))
    return read_config(flags, {ENV_PREFIX + name: value for name, value in environment.items()})


def test_the_version_is_the_projects():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert octavo_operator.__version__ == project["version"]


def test_defaults():
    assert read() == OperatorConfig()


def test_a_flag_wins_over_the_environment():
    found = read("--workers=7", WORKERS="8", HEALTH_PORT="9000")
    assert (found.workers, found.health_port) == (7, 9000)


def test_namespaces_are_a_set():
    assert read("--namespaces", "b, a,,b").namespace_list == ("a", "b")


@pytest.mark.parametrize("arguments", [["--workers=x"], ["--workers=0"], ["--log-level=loud"], ["--lease-seconds=nan"]])
def test_what_is_wrong_is_named(arguments):
    with pytest.raises(ConfigError, match=arguments[0].split("=")[0]):
        read(*arguments)


def test_every_setting_is_a_documented_flag(capsys):
    with pytest.raises(SystemExit):
        cli.build_parser().parse_args(["run", "--help"])
    text = capsys.readouterr().out
    for option in dataclasses.fields(OperatorConfig):
        assert "--" + option.name.replace("_", "-") in text


def test_wrong_settings_exit_with_2(capsys):
    assert cli.main(["run", "--workers=x"]) == 2
    assert "--workers" in capsys.readouterr().err


def test_the_group_of_a_cache_is_a_number_or_nobodys_choice():
    assert read().cache_group_id == 65532
    assert read(CACHE_GROUP="1000660000").cache_group_id == 1000660000
    assert read("--cache-group=").cache_group_id is None
    for wrong in ("0", "root", "-1", "2147483648"):
        with pytest.raises(ConfigError, match="--cache-group"):
            read(f"--cache-group={wrong}")


def test_peers_of_the_management_port():
    found = read("--prometheus-namespaces=team=ops,env=prod", "--management-addresses=10.0.0.1/32, fd00::/8")
    assert labels(found.prometheus_namespaces) == {"team": "ops", "env": "prod"}
    assert found.address_list == ("10.0.0.1/32", "fd00::/8")


@pytest.mark.parametrize(
    "argument",
    ["--operator-pods=octavo", "--prometheus-pods=a b=c", "--management-addresses=10.0.0.1/33", "--prometheus-pods==x"],
)
def test_a_peer_that_no_policy_could_name_is_refused_at_the_start(argument):
    with pytest.raises(ConfigError, match=argument.split("=")[0]):
        read(argument)
