"""The chat sample in a browser, driven as a person would: what the samples' tests share."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from tests.web.support.calls import LONG_S
from tests.web.support.page import Context
from tests.web.support.server import ROOT, WebServer

SAMPLES = ROOT / "samples" / "web"


def packing() -> ModuleType:
    """samples/web/pack.py, which is no module of a package."""
    if "samples_web_pack" not in sys.modules:
        spec = importlib.util.spec_from_file_location("samples_web_pack", SAMPLES / "pack.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["samples_web_pack"] = module
        spec.loader.exec_module(module)
    return sys.modules["samples_web_pack"]


def serve_sample(
    server: WebServer, sample: str, *, modules: Path, python: Path | None = None, model: Path | None = None
) -> str:
    """Serves a sample as pack.py lays it, with the demo model if no other is given; its address."""
    pack = packing()
    for prefix, folder in pack.roots(sample, model=model or pack.demo(), modules=modules, python=python).items():
        server.serve(f"/{sample}/{prefix}".rstrip("/"), folder)
    return f"{server.url}/{sample}/"


class ChatPage:
    """The chat in a tab. Settings are put where the page keeps them, the rest is done by mouse and keys."""

    def __init__(self, context: Context, url: str, **settings: object) -> None:
        self.context = context
        self.page = context.page(url)
        self.ready()
        self.set(device="wasm", engine="javascript", **settings)

    def ready(self) -> None:
        self.page.wait_for("html[data-ready]", state="attached")

    def set(self, **settings: object) -> None:
        self.page.evaluate(
            """async (changed) => {
                const kept = JSON.parse(localStorage.getItem("embedllm-chat") ?? "{}");
                localStorage.setItem("embedllm-chat", JSON.stringify({...kept, ...changed}));
            }""",
            settings,
        )

    def load(self) -> None:
        """Clicks Load, and waits until messages can be sent."""
        self.page.click("#load")
        self.loaded()

    def loaded(self) -> None:
        self.page.wait_for("#send:enabled", patience_s=LONG_S)

    def send(self, text: str) -> None:
        """Types a message and sends it by Enter."""
        self.page.type("#said", text)
        self.page.press("Enter", "#said")

    def ask(self, text: str) -> str:
        """Sends a message; the last message of the chat when the reply has ended."""
        before = len(self.messages())
        self.send(text)
        self.page.wait_for(f"#transcript > li:nth-child({before + 2}) .facts", patience_s=LONG_S)
        self.loaded()
        return self.messages()[-1]

    def reply(self, place: int) -> str:
        """The chat's message at a place, from 1 on, as far as it has come."""
        message = f"#transcript > li:nth-child({place})"
        self.page.wait_for(f"{message}, #trouble:not([hidden])")
        assert not self.page.texts("#trouble:not([hidden])")
        return self.page.text(message)

    def has_replied(self, place: int) -> bool:
        """Whether the message at a place has ended."""
        return bool(self.page.texts(f"#transcript > li:nth-child({place}) .facts"))

    def messages(self) -> list[str]:
        return self.page.texts("#transcript > li")

    def trouble(self) -> str:
        """Waits for the box that says what went wrong; its heading."""
        self.page.wait_for("#trouble", patience_s=LONG_S)
        return self.page.text("#trouble-heading")
