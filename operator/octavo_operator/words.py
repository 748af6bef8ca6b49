"""Text of others on its way to where people read it: one line, bounded, and without what looks like a credential.

Pods' last words and the API server's answers are copied into status and Events, which more people may read than may
read Secrets. Octavo's own programs name no credential; this is the second lock.
"""

from __future__ import annotations

import re

STRUCK = "***"

_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\b([a-z][a-z0-9+.-]*://)[^/\s@'\"]+@", re.IGNORECASE), rf"\1{STRUCK}@"),
    (re.compile(r"\b(https?://[^\s?#'\"]+)\?[^\s'\"]+", re.IGNORECASE), rf"\1?{STRUCK}"),
    (re.compile(r"\b(bearer|basic)\s+[\w.~+/=-]{6,}", re.IGNORECASE), rf"\1 {STRUCK}"),
    (re.compile(r"\beyJ[\w-]+\.[\w-]+\.[\w-]*"), STRUCK),
    (re.compile(r"\b(hf_|gh[pousr]_|sk-|xox[abpr]-)[\w-]{8,}"), STRUCK),
    (re.compile(r"\b(AKIA|ASIA)[0-9A-Z]{12,}"), STRUCK),
    (
        re.compile(
            r"\b([\w-]*(?:token|passwo?r?d|passwd|secret_?access_?key|api[-_]?key|access[-_]?key(?:[-_]?id)?|signature)"
            r"[\"']?\s*[=:]\s*[\"']?)[^\s\"',;&]+",
            re.IGNORECASE,
        ),
        rf"\1{STRUCK}",
    ),
)
_UNPRINTABLE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[\x00-\x1f\x7f]+")


def plain(text: str, limit: int) -> str:
    """At most `limit` UTF-8 bytes of `text` on one line; what looks like a credential is struck out."""
    text = re.sub(r" {2,}", " ", _UNPRINTABLE.sub(" ", text)).strip()
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text.encode()[:limit].decode(errors="ignore")
