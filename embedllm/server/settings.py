"""ServerSettings: where the server listens, whom it answers, and its limits."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Raises ValueError for limits that are none, and for an address that others reach without a key."""

    host: str = "127.0.0.1"
    port: int = 8080
    api_keys: tuple[str, ...] = field(default=(), repr=False)  # any of them; none: no key is asked for
    no_auth: bool = False  # other machines may use it without a key
    allowed_hosts: tuple[str, ...] = ()  # names in the Host header, beside those of loopback
    allowed_origins: tuple[str, ...] = ()  # of web pages that may use it, as https://name:port; "*": any
    max_body_bytes: int = 8 * MIB
    max_requests: int = 256  # at the same time; one more is answered with 429
    max_tokens: int | None = None  # of a reply; one that asks for more ends with "length"
    max_choices: int = 128  # prompts times n, of one request
    request_timeout_s: float = 600.0  # of a reply
    body_timeout_s: float = 30.0  # until the body of a request is there
    header_timeout_s: float = 10.0  # until its headers are
    write_timeout_s: float = 60.0  # while the client reads nothing
    keep_alive_s: float = 15.0  # without an event, after which a stream gets a comment
    end_timeout_s: float = 30.0  # for replies under way when the server ends
    has_page: bool = True  # the built-in chat page at /

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port is {self.port}; expected 0 (any free one) to 65535.")
        for name in ("max_body_bytes", "max_requests", "max_choices", "request_timeout_s", "body_timeout_s",
                     "header_timeout_s", "write_timeout_s", "keep_alive_s", "end_timeout_s"):  # fmt: skip
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)!r}; expected more than 0.")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ValueError(f"max_tokens is {self.max_tokens}; expected 1 or more, or None.")
        if odd := [key for key in self.api_keys if not key or not key.isascii() or not key.isprintable() or " " in key]:
            raise ValueError(f"an API key has {len(odd[0])} characters that no header can hold; expected ASCII.")
        if odd := [origin for origin in self.allowed_origins if origin != "*" and "://" not in origin]:
            raise ValueError(f"the allowed origin is '{odd[0]}'; expected a scheme and a name: https://{odd[0]}.")
        if not (self.is_loopback or self.api_keys or self.no_auth):
            raise ValueError(
                f"host is '{self.host}', which other machines reach, and there is no API key. Set EMBEDLLM_API_KEY or "
                "--api-key-file, or serve everybody with --no-auth."
            )

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine's own."""
    name = host.strip("[]").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
