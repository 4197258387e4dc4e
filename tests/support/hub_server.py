"""A server on 127.0.0.1 that speaks as much of the Hugging Face hub's API as its client asks for, and can misbehave."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

MAIN = "main"
_LARGE = (".safetensors", ".gguf", ".onnx")  # stored as large files, with a sha256
_INFO = re.compile(r"/api/models/(?P<name>[^/]+/[^/]+)(/revision/(?P<revision>[^/]+))?")
_TREE = re.compile(r"/api/models/(?P<name>[^/]+/[^/]+)/tree/(?P<revision>[^/]+)")
_FILE = re.compile(r"/(?P<name>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<file>.+)")


@dataclass
class Repo:
    """What is uploaded: commits, and branches and tags that name them."""

    commits: dict[str, Mapping[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    token: str = ""  # that is asked for; "": everybody may read it
    is_gated: bool = False

    def commit(self, files: Mapping[str, bytes], branch: str = MAIN) -> str:
        told = json.dumps([[name, hashlib.sha1(data).hexdigest()] for name, data in sorted(files.items())])
        made = hashlib.sha1(told.encode()).hexdigest()
        self.commits[made], self.refs[branch] = files, made
        return made


@dataclass
class Hub:
    """The server's repositories, what it was asked for, and how it misbehaves."""

    url: str = ""
    repos: dict[str, Repo] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)  # "GET /path", in order
    sent: Counter[str] = field(default_factory=Counter)  # bytes of each file
    ranges: list[str] = field(default_factory=list)
    breaks: dict[str, list[int]] = field(
        default_factory=dict
    )  # by file: number of bytes after which to break, once each
    wrong: set[str] = field(default_factory=set)  # files of which a byte is another
    is_down: bool = False

    def downloaded(self) -> set[str]:
        return set(self.sent)


def read_folder(folder: Path) -> dict[str, bytes]:
    """A folder's files, as they are uploaded."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@contextmanager
def serving() -> Iterator[Hub]:
    """A hub that runs as long as the block does."""
    hub = Hub()

    class Handler(_Handler):
        shared = hub

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()


def use(hub: Hub, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Points the client of this process, which has read its environment long ago, to a server and caches of its own."""
    from huggingface_hub import constants

    for name, value in {
        "ENDPOINT": hub.url,
        "HUGGINGFACE_CO_URL_TEMPLATE": hub.url + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_CACHE": str(home / "hub"),
        "HF_TOKEN_PATH": str(home / "token"),
        "HF_HUB_OFFLINE": False,
    }.items():
        monkeypatch.setattr(constants, name, value)
    _forget_sessions()
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("platformdirs.user_cache_path", lambda *_, **__: home / "cache")


def go_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if HF_HUB_OFFLINE had been 1 when the client was imported."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    _forget_sessions()


def _forget_sessions() -> None:
    """A client before 1.0 looks whether it is offline when it begins a session, which it keeps."""
    from huggingface_hub import utils

    if forget := getattr(utils, "reset_sessions", None):
        forget()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    shared: Hub

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, format: str, *arguments: object) -> None: ...

    def _answer(self, *, with_body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.shared.asked.append(f"{self.command} {path}")
        if self.shared.is_down:
            return self._fail(503, "")
        answers = {_TREE: self._tree, _INFO: self._info, _FILE: self._file}
        matches = [(match, answer) for pattern, answer in answers.items() if (match := pattern.fullmatch(path))]
        if not matches:
            return self._fail(404, "EntryNotFound")
        found, answer = matches[0]
        repo = self.shared.repos.get(found["name"])
        may_read = repo is not None and (not repo.token or self.headers.get("authorization") == f"Bearer {repo.token}")
        if repo is None or not may_read:
            gated = repo is not None and repo.is_gated
            return self._fail(403, "GatedRepo") if gated else self._fail(401, "RepoNotFound")
        wanted = found["revision"] or MAIN
        commit = repo.refs.get(wanted, wanted)
        if commit not in repo.commits:
            return self._fail(404, "RevisionNotFound")
        return answer(repo.commits[commit], commit, found.groupdict(), with_body)

    def _info(self, files: Mapping[str, bytes], commit: str, found: dict[str, str], with_body: bool) -> None:
        siblings = []
        for name, data in files.items():
            entry: dict[str, object] = {"rfilename": name, "size": len(data), "blobId": _blob(name, data)}
            if name.endswith(_LARGE):
                entry["lfs"] = {"sha256": _sha256(data), "size": len(data), "pointerSize": 134}
            siblings.append(entry)
        self._json({"id": found["name"], "sha": commit, "siblings": siblings})

    def _tree(self, files: Mapping[str, bytes], commit: str, found: dict[str, str], with_body: bool) -> None:
        entries = []
        for name, data in files.items():
            entry: dict[str, object] = {"type": "file", "path": name, "size": len(data), "oid": _blob(name, data)}
            if name.endswith(_LARGE):
                entry["lfs"] = {"oid": _sha256(data), "size": len(data), "pointerSize": 134}
            entries.append(entry)
        self._json(entries)

    def _file(self, files: Mapping[str, bytes], commit: str, found: dict[str, str], with_body: bool) -> None:
        name = found["file"]
        if name not in files:
            return self._fail(404, "EntryNotFound")
        data = files[name]
        start = 0
        if asked := self.headers.get("Range"):
            start = int(asked.removeprefix("bytes=").rstrip("-"))
            self.shared.ranges.append(f"{name} {start}")
        self.send_response(206 if asked else 200)
        etag = _sha256(data) if name.endswith(_LARGE) else _blob(name, data)
        self.send_header("X-Repo-Commit", commit)
        self.send_header("ETag", f'"{etag}"')
        if name.endswith(_LARGE):
            self.send_header("X-Linked-Etag", f'"{etag}"')
            self.send_header("X-Linked-Size", str(len(data)))
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        if not with_body:
            return None
        if name in self.shared.wrong:
            data = bytes([data[0] ^ 1]) + data[1:]
        breaks = self.shared.breaks.get(name)
        stop = breaks.pop(0) if breaks else len(data)
        self.shared.sent[name] += max(stop - start, 0)
        self.wfile.write(data[start:stop])
        if stop < len(data):
            self.close_connection = True
        return None

    def _fail(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _json(self, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _blob(name: str, data: bytes) -> str:
    """git's own hash of a file, or of the pointer to a large one."""
    if name.endswith(_LARGE):
        data = f"version https://git-lfs.github.com/spec/v1\noid sha256:{_sha256(data)}\nsize {len(data)}\n".encode()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
