"""A web server on this machine for tests: the headers a page needs, byte ranges, and faults on demand."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import SHUT_RDWR
from typing import Self
from urllib.parse import unquote, urlsplit

from tests.web.support.faults import Fault, Request

ROOT = Path(__file__).parents[3]
BLOCK = 1 << 16
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".webmanifest": "application/manifest+json",
    ".wasm": "application/wasm",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".zip": "application/zip",
    ".whl": "application/zip",
    **dict.fromkeys((".txt", ".md", ".py", ".jinja", ".ts", ".map"), "text/plain; charset=utf-8"),
}
ISOLATED = {  # what cross-origin isolation (SharedArrayBuffer, threads of WebAssembly) needs on every response
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class WebServer:
    """Serves folders below path prefixes on 127.0.0.1, at a port of its own: another origin for each server.

    roots: prefix ("/src") -> folder; more are added by serve(). The longest prefix that fits a path has it.
    cors: pages of other origins may read all that is served.
    """

    def __init__(self, roots: Mapping[str, Path], *, cors: bool = False) -> None:
        self._roots = {prefix.rstrip("/"): folder for prefix, folder in roots.items()}
        self._headers: dict[str, Mapping[str, str]] = {}
        self._faults: dict[str, Fault] = {}
        self._released: dict[str, threading.Event] = {}
        self._lock = threading.Lock()
        self._requests: list[Request] = []
        self.cors = cors
        web = self

        class Bound(_Handler):
            server_of_tests = web

        self._http = _Server(("127.0.0.1", 0), Bound)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def plain(self, address: str) -> str:
        """The same address as a page without https has it, which is no secure context: by a name of driver.mjs."""
        return address.replace("//127.0.0.1:", "//plain.test:")

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends; what is held is let go first."""
        for event in list(self._released.values()):
            event.set()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def serve(self, prefix: str, folder: Path) -> str:
        """Serves a folder too; the address of it, without a slash at its end."""
        self._roots[prefix.rstrip("/")] = folder
        return self.url + prefix.rstrip("/")

    def headers(self, prefix: str, headers: Mapping[str, str]) -> None:
        """Sends these headers too (a Content-Security-Policy, say) with every path that starts with the prefix."""
        self._headers[prefix] = headers

    def fault(self, path: str, fault: Fault | None, *, keep_held: bool = False) -> None:
        """What goes wrong with a path from now on; None: nothing any more.

        keep_held: what is held now can still be released. A page may lose what it had not read before a cut:
        hold there first.
        """
        with self._lock:
            if fault is None:
                self._faults.pop(path, None)
            else:
                self._faults[path] = fault
            if not keep_held:
                self._released[path] = threading.Event()

    def release(self, path: str) -> None:
        """Lets go what `hold_after` holds, and holds that path no more."""
        self._released[path].set()

    def requests(self, path: str | None = None) -> list[Request]:
        """What was asked for so far, in order; of one path, or of all."""
        with self._lock:
            return [request for request in self._requests if path in (None, request.path)]

    def forget(self) -> None:
        """Empties the record of requests."""
        with self._lock:
            self._requests.clear()

    def _file(self, path: str) -> Path | None:
        fitting = [prefix for prefix in self._roots if path == prefix or path.startswith(prefix + "/")]
        if not fitting:
            return None
        prefix = max(fitting, key=len)
        parts = [part for part in path[len(prefix) :].split("/") if part]
        if ".." in parts:
            return None
        file = self._roots[prefix].joinpath(*parts)
        return file / "index.html" if file.is_dir() else file

    def _take(self, path: str) -> Fault:
        with self._lock:
            fault = self._faults.get(path)
            if fault is None:
                return Fault()
            if fault.times is not None:
                if fault.times <= 1:
                    del self._faults[path]
                else:
                    self._faults[path] = replace(fault, times=fault.times - 1)
            return fault

    def _note(self, request: Request) -> None:
        with self._lock:
            self._requests.append(request)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """A page that goes away in the middle of an answer is no error here."""


class _Handler(BaseHTTPRequestHandler):
    server_of_tests: WebServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        web = self.server_of_tests
        path = unquote(urlsplit(self.path).path)
        fault = web._take(path)
        file = web._file(path)
        if fault.status is not None:
            return self._refuse(fault.status, path)
        if file is None or not file.is_file():
            return self._refuse(404, path)
        data = file.stat()
        size, etag = data.st_size, f'"{data.st_mtime_ns:x}-{data.st_size:x}"'
        wanted = None if fault.no_ranges else self.headers.get("Range")
        if self.headers.get("If-Range", etag) != etag:
            wanted = None
        if wanted is None and self.headers.get("If-None-Match") == etag:
            self._start(304, path, {"ETag": etag})
            return None
        span = _span(wanted, size)
        if span is None:
            self._start(416, path, {"Content-Range": f"bytes */{size}", "Content-Length": "0"})
            return None
        headers = {"ETag": etag, "Content-Type": TYPES.get(file.suffix, "application/octet-stream")}
        if not fault.no_ranges:
            headers["Accept-Ranges"] = "bytes"
        if wanted is not None:
            headers["Content-Range"] = f"bytes {span.start}-{span.stop - 1}/{size}"
        self._start(200 if wanted is None else 206, path, {**headers, "Content-Length": str(len(span))})
        if self.command == "GET":
            self._send(file, span, fault, path)
        return None

    do_HEAD = do_GET  # noqa: N815  # the base class's name

    def do_OPTIONS(self) -> None:
        self._start(204, unquote(urlsplit(self.path).path), {"Content-Length": "0"})

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: tests ask for requests()."""

    def _refuse(self, status: int, path: str) -> None:
        body = f"{status} for {path}\n".encode()
        self._start(status, path, {"Content-Type": "text/plain; charset=utf-8", "Content-Length": str(len(body))})
        if self.command == "GET":
            self.wfile.write(body)

    def _start(self, status: int, path: str, headers: Mapping[str, str]) -> None:
        web = self.server_of_tests
        web._note(
            Request(
                method=self.command, path=path, range=self.headers.get("Range"), status=status,
                headers=dict(self.headers.items()),
            )
        )  # fmt: skip
        self.send_response(status)
        sent = {"Cache-Control": "no-cache", **ISOLATED, **headers}
        if web.cors:
            sent |= {
                "Access-Control-Allow-Origin": "*", "Access-Control-Allow-Headers": "*",
                "Cross-Origin-Resource-Policy": "cross-origin",
            }  # fmt: skip
        for prefix, more in web._headers.items():
            sent |= more if path.startswith(prefix) else {}
        for name, value in sent.items():
            self.send_header(name, value)
        self.end_headers()

    def _send(self, file: Path, span: range, fault: Fault, path: str) -> None:
        at, end = span.start, span.stop
        with file.open("rb") as source:
            source.seek(at)
            while at < end:
                sent = at - span.start
                stops = [stop for stop in (fault.cut_after, fault.hold_after) if stop is not None and stop > sent]
                block = bytearray(source.read(min([BLOCK, end - at, *(stop - sent for stop in stops)])))
                if sent == fault.hold_after:
                    self.wfile.flush()
                    self.server_of_tests._released[path].wait()
                if sent == fault.cut_after:
                    self.wfile.flush()
                    self.connection.shutdown(SHUT_RDWR)
                    self.close_connection = True
                    return
                if fault.flip is not None and at <= fault.flip < at + len(block):
                    block[fault.flip - at] ^= 1
                self.wfile.write(block)
                at += len(block)
                if fault.rate_bytes_s is not None:
                    time.sleep(len(block) / fault.rate_bytes_s)


def _span(wanted: str | None, size: int) -> range | None:
    """The bytes of "bytes=a-b", "bytes=a-" or "bytes=-n"; None where no such bytes are."""
    if wanted is None:
        return range(size)
    first, _, last = wanted.removeprefix("bytes=").partition("-")
    start = int(first) if first else max(0, size - int(last))
    stop = min(size, int(last) + 1) if first and last else size
    return range(start, stop) if start < stop else None
