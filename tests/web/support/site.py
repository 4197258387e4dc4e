"""What pages of tests and benchmarks are served with: our sources, the npm packages, and the addresses of these."""

from __future__ import annotations

from pathlib import Path

from embedllm.backends.probe import probe
from tests.web.support import found
from tests.web.support.server import ROOT, WebServer


def new_server(source: Path = ROOT, **folders: Path) -> WebServer:
    """Serves the sources of a checkout, and a folder below each of these names; the packages of npm are this one's."""
    roots = {
        "/src": source / "bindings_web" / "src",
        "/tests": ROOT / "tests" / "web" / "support",
        "/samples": ROOT / "samples" / "web",
        "/node_modules": found.node_modules() or ROOT / "bindings_web" / "node_modules",
    }
    return WebServer(roots | {f"/{name}": folder for name, folder in folders.items()})


def urls(server: WebServer) -> dict[str, str]:
    """The libraries as npm installed them, and the probe's model."""
    modules = f"{server.url}/node_modules"
    return {
        "onnxruntime": f"{modules}/onnxruntime-web/dist/",
        "tokenizers": f"{modules}/@huggingface/tokenizers/dist/tokenizers.min.mjs",
        "hashes": f"{modules}/@noble/hashes/sha2.js",
        "jinja": f"{modules}/@huggingface/jinja/dist/index.js",
        "probe": server.serve("/probe", probe.FOLDER) + "/",
    }
