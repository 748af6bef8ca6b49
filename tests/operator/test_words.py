"""Words of others on their way into status: one bounded line without credentials."""

import pytest

from octavo_operator.words import plain

MARKER = "s3cr3tMARKERvalue0"

SECRETS = [
    f"GET https://user:{MARKER}@files.example/m: 404",
    f"fetching https://store.example/m?X-Amz-Signature={MARKER}&X-Amz-Credential={MARKER}: 403",
    f"401 with Authorization: Bearer {MARKER}",
    f"header Basic {MARKER}==",
    f"hub says no to hf_{MARKER}",
    f"AWS_SECRET_ACCESS_KEY={MARKER} is not valid",
    f"aws_access_key_id: {MARKER}",
    f'{{"token": "{MARKER}"}}',
    f"--api-key={MARKER}",
    f"password={MARKER};",
    f"s3://key:{MARKER}@bucket/m",
    f"GitHub token ghp_{MARKER} expired",
    f"jwt eyJ{MARKER}.eyJ{MARKER}.{MARKER}",
]


@pytest.mark.parametrize("text", SECRETS)
def test_what_looks_like_a_credential_is_struck_out(text):
    cleaned = plain(text, 1000)
    assert MARKER not in cleaned
    assert "***" in cleaned


WORDS = [
    'secret "nokeys" not found',
    "references non-existent secret key: api-key",
    'MountVolume.SetUp failed for volume "keys" : secret "keys" not found',
    "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
    'failed to resolve reference "registry.example/engine:1": pull access denied, authorization failed',
    "ModelNotFound: hf://org/name has no revision main",
    "http://assistant.team.svc:8000",
]


@pytest.mark.parametrize("text", WORDS)
def test_what_the_cluster_says_stays(text):
    assert plain(text, 1000) == text


def test_the_result_is_one_printable_line():
    assert plain("a\x1b[31mred\x1b[0m\r\n\tb\x00c", 100) == "a red b c"


def test_the_limit_counts_bytes_and_cuts_no_character():
    cut = plain("é" * 100, 51)
    assert cut == "é" * 25
