"""Serves the samples on this machine: python samples/web/serve.py

With the headers of cross-origin isolation, which threads of WebAssembly need, and byte ranges, with which a broken
download goes on. For trying out, on 127.0.0.1; to publish a sample, pack it (pack.py) and put it on a web server.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pack import HERE, NEEDS_PYTHON, SAMPLES, demo, make_python, node_modules, roots

HEADERS = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # asked for again each time, answered with 304 when it is the same
    "X-Content-Type-Options": "nosniff",
}
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".webmanifest": "application/manifest+json",
    ".wasm": "application/wasm",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    **dict.fromkeys((".js", ".mjs"), "text/javascript; charset=utf-8"),
}


class Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD from folders; the longest path that fits names the folder."""

    protocol_version = "HTTP/1.1"

    def __init__(self, folders: Mapping[str, Path], *arguments: object) -> None:
        self._folders = folders
        super().__init__(*arguments)  # type: ignore[arg-type]  # a socket, an address and the server

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        file = self._file(path)
        if file is not None and file.is_dir():
            if not path.endswith("/"):  # else relative addresses in the page lead elsewhere
                return self._answer(HTTPStatus.MOVED_PERMANENTLY, {"Location": f"{path}/"})
            file /= "index.html"
        if file is None or not file.is_file():
            return self._answer(HTTPStatus.NOT_FOUND, {"Content-Type": "text/plain"}, f"nothing at {path}\n".encode())
        facts = file.stat()
        etag = f'"{facts.st_mtime_ns:x}-{facts.st_size:x}"'
        if self.headers.get("If-None-Match") == etag:
            return self._answer(HTTPStatus.NOT_MODIFIED, {"ETag": etag})
        headers = {"ETag": etag, "Content-Type": TYPES.get(file.suffix, "application/octet-stream")}
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if match is None or self.headers.get("If-Range", etag) != etag:
            return self._answer(HTTPStatus.OK, {**headers, "Accept-Ranges": "bytes"}, file)
        start, last = int(match[1]), min(int(match[2] or facts.st_size), facts.st_size - 1)
        if start > last:
            return self._answer(
                HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, {"Content-Range": f"bytes */{facts.st_size}"}
            )
        headers["Content-Range"] = f"bytes {start}-{last}/{facts.st_size}"
        return self._answer(HTTPStatus.PARTIAL_CONTENT, headers, file, range(start, last + 1))

    do_HEAD = do_GET  # noqa: N815  # the base class's name

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: a page asks for a hundred files."""

    def _file(self, path: str) -> Path | None:
        fitting = [prefix for prefix in self._folders if path == prefix or path.startswith(f"{prefix}/")]
        if not fitting:
            return None
        prefix = max(fitting, key=len)
        parts = [part for part in path[len(prefix) :].split("/") if part]
        if any(part == ".." or "\\" in part or ":" in part or "\0" in part for part in parts):
            return None  # out of the folder, on some system
        return self._folders[prefix].joinpath(*parts)

    def _answer(
        self, status: HTTPStatus, headers: Mapping[str, str], body: bytes | Path = b"", span: range | None = None
    ) -> None:
        whole = len(body) if isinstance(body, bytes) else body.stat().st_size
        span = range(whole) if span is None else span
        self.send_response(status)
        for name, value in {**HEADERS, **headers, "Content-Length": str(len(span))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD" or not span:
            return
        if isinstance(body, bytes):
            self.wfile.write(body)
            return
        with body.open("rb") as source:
            source.seek(span.start)
            left = len(span)
            while block := source.read(min(1 << 16, left)):
                self.wfile.write(block)
                left -= len(block)


class Server(ThreadingHTTPServer):
    """A page that goes away in the middle of an answer is no error."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]  # a socket and its address


def folders(model: Path, modules: Path, python: Path | None) -> dict[str, Path]:
    """Every sample below its name."""
    folders_by_path = {"": HERE}
    for sample in SAMPLES:
        parts = roots(sample, model=model, modules=modules, python=python if sample in NEEDS_PYTHON else None)
        folders_by_path |= {f"/{sample}/{prefix}".rstrip("/"): folder for prefix, folder in parts.items()}
    return folders_by_path


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Serves the samples for browsers on this machine.")
    parser.add_argument("--port", type=int, default=8000, help="default: %(default)s; 0 takes a free one")
    parser.add_argument("--model", type=Path, help="a folder that embedllm export wrote, in place of the demo model")
    parser.add_argument("--no-python", action="store_true", help="do not make the wheels for Python in a page")
    options = parser.parse_args()
    model, modules = options.model or demo(), node_modules()
    if not (model / "embedllm.json").is_file():
        parser.error(f"'{model}' holds no embedllm.json; name a folder that embedllm export wrote.")
    with tempfile.TemporaryDirectory(prefix="embedllm-web-") as work:
        python = None if options.no_python else make_python(Path(work))
        server = Server(("127.0.0.1", options.port), partial(Handler, folders(model, modules, python)))
        sys.stdout.write(f"http://127.0.0.1:{server.server_address[1]}/ (end with Ctrl+C)\n")
        sys.stdout.flush()
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            sys.stdout.write("\n")
        finally:
            server.server_close()


if __name__ == "__main__":
    main()
