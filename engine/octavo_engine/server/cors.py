"""Web pages of other origins: which may call the API. None may, unless the server's owner names it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from octavo_engine.errors import InvalidConfiguration

ANY = "*"
METHODS = ("GET", "POST")
# What a page's script may read of a reply, beside what the standard lets it.
TOLD = (
    *("x-request-id", "retry-after", "www-authenticate"),
    *(f"x-ratelimit-{what}-{kind}" for what in ("limit", "remaining", "reset") for kind in ("requests", "tokens")),
)
PREFLIGHT_SECONDS = 600  # how long a browser may go by what it was told
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[a-z0-9.-]+(:[0-9]{1,5})?|[a-z][a-z0-9+.-]*://\[[0-9a-f:.]+\](:[0-9]{1,5})?")


def with_origins(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """`app`, for web pages too. Preflights are answered without a key, which browsers do not send with them.

    Keys come in a header that a page's script sets, never by themselves as cookies do: so no credentials are allowed,
    and a page can do no more than whoever knows the key. Any header may be sent, for clients add their own.
    """
    return CORSMiddleware(
        app,
        allow_origins=tuple(origins),
        allow_methods=METHODS,
        allow_headers=(ANY,),
        allow_credentials=False,
        expose_headers=TOLD,
        max_age=PREFLIGHT_SECONDS,
    )


def check_origins(origins: Sequence[str]) -> None:
    """Raise InvalidConfiguration for what no browser ever sends as an origin, and so would never match."""
    for origin in origins:
        if origin != ANY and not _ORIGIN.fullmatch(origin):
            raise InvalidConfiguration(
                f"--cors-allow-origin is {origin!r}; write an origin as browsers do, in lower case and without a path"
                " or a slash at its end: https://app.example.com, http://localhost:3000, or * for any"
            )
