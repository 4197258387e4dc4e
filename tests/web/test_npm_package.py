"""The npm package in an application: what is in it, its types, and pages that Vite and webpack build with it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from filelock import FileLock

import embedllm
from embedllm.loading.resolve import package_folder
from tests.web.support.browser import Browser
from tests.web.support.server import ROOT, WebServer
from tests.web.support.site import urls
from tests.web.test_page import POLICY

pytestmark = pytest.mark.slow

PACKED_FROM = ("pyproject.toml", "README.md", "LICENSE", "embedllm", "backends", "export", "bindings_web", "tools")
IGNORED = ("__pycache__", "node_modules", "demo")
PACKED = ("types", "python", "probe", "LICENSE", "*.tgz")  # what packing made there before
ICON = '<link rel="icon" href="data:,">'
TYPESCRIPT = """
import { ContextFull, Conversation, EmbedLLM, EmbedError } from "embedllm-web";
import type {
  Answer, Chunk, Completion, CompletionChunk, CompletionRequest, ConversationOptions, Device, LoadOptions, Message,
  Progress, Prompt, ReplyOptions, Saved, Statistics, Urls,
} from "embedllm-web";

interface Turn { role: "user" | "assistant"; content: string }
const turns: Turn[] = [{ role: "user", content: "a" }];
const constant = [{ role: "user", content: "a" }] as const;
const messages: Message[] = [...turns, { role: "tool", content: [{ type: "text", text: "a" }], tool_call_id: "1" }];
const urls: Urls = { probe: "probe/" };
const progress: Progress[] = [];
const load: LoadOptions = { engine: "javascript", urls, onProgress: (one) => progress.push(one) };
const llm: EmbedLLM = await EmbedLLM.load("models/demo/", load);
const device: Device = llm.device;
const options: ReplyOptions = { temperature: 0, tools: constant, max_tokens: 3 };
const chunks: Chunk[] = [];
for (const prompt of ["a", [1, 2], new Uint32Array([1, 2]), turns, constant, messages] satisfies Prompt[]) {
  const answer: Answer = await llm.generate(prompt, options);
  const { tokens }: Statistics = answer.statistics;
  for await (const chunk of llm.stream(prompt)) chunks.push(chunk);
}
for await (const { text } of llm.chat(turns, options)) console.log(text.length);
const begun: ConversationOptions = { system: "a", messages: turns };
const talk: Conversation = llm.conversation(begun);
for await (const { text } of talk.say(turns[0])) console.log(text.length);
const saved: Saved = talk.save();
const request: CompletionRequest = { messages: turns };
const whole: Completion = await llm.chat.completions.create({ messages });
const pieces: AsyncIterable<CompletionChunk> = await llm.chat.completions.create({ ...request, stream: true });
const either = await llm.chat.completions.create({ ...request, stream: chunks.length > 1 });
console.log("choices" in either ? either.choices[0].message.content : either[Symbol.asyncIterator], whole, pieces);
console.log(device.name, (await EmbedLLM.cache.list())[0].url, ContextFull.prototype instanceof EmbedError, saved.id);
// @ts-expect-error: there is no such engine
await EmbedLLM.load("models/demo/", { engine: "rust" });
// @ts-expect-error: there is no such option
await llm.generate("a", { temprature: 1 });
// @ts-expect-error: a message has a role
await llm.generate([{ content: "a" }]);
// @ts-expect-error: messages are a list
llm.chat("a");
"""
WEBPACK = """
import { createRequire } from "node:module";
const [modules, context] = process.argv.slice(1);
const webpack = createRequire(`${modules}/of-the-test.js`)("webpack");
webpack({ mode: "production", context, entry: "./main.js" }, (error, stats) => {
  console.error(error?.stack ?? stats.toString({ preset: "errors-warnings" }));
  process.exitCode = error || stats.hasErrors() || stats.hasWarnings() ? 1 : 0;
});
"""


def run(command: Sequence[object], cwd: Path, **environment: str) -> None:
    """Carries out a command, which must end well."""
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env={**os.environ, "NO_COLOR": "1", **environment}, capture_output=True,
        text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.fixture(scope="session")
def npm_package(node: str, node_modules: Path, shared_folder: Path) -> Path:
    """What `npm pack` makes, unpacked. Made of a copy of the sources, since packing writes into them."""
    folder = shared_folder / "npm package"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            with tempfile.TemporaryDirectory() as work:
                sources = copied(Path(work)) / "bindings_web"
                (sources / "node_modules").symlink_to(node_modules)
                path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # of the `python` that it runs
                run([npm(), "pack"], sources, PATH=path)
                (archive,) = sources.glob("*.tgz")
                with tarfile.open(archive) as packed:
                    packed.extractall(folder, filter="data")
    return folder / "package"


def copied(target: Path) -> Path:
    """Copies the sources that packing reads, without what it made there before."""
    for name in PACKED_FROM:
        if (ROOT / name).is_dir():
            ignore = shutil.ignore_patterns(*IGNORED, *(PACKED if name == "bindings_web" else ()))
            shutil.copytree(ROOT / name, target / name, symlinks=True, ignore=ignore)
        else:
            shutil.copy(ROOT / name, target)
    return target


def npm() -> str:
    path = shutil.which("npm")
    if path is None:
        pytest.skip("npm is not here; it comes with Node.js")
    return path


@pytest.fixture
def application(npm_package: Path, tmp_path: Path) -> Path:
    """A folder in which the package is installed."""
    shutil.copytree(npm_package, tmp_path / "node_modules" / "embedllm-web")
    (tmp_path / "package.json").write_text('{"type": "module", "private": true}', encoding="utf-8")
    return tmp_path


def test_the_package_has_all_that_it_names(npm_package: Path) -> None:
    files = {file.relative_to(npm_package).as_posix() for file in npm_package.rglob("*") if file.is_file()}
    assert {"LICENSE", "README.md", "package.json", "src/index.js", "src/worker.js", "types/index.d.ts"} <= files
    assert (npm_package / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    folders = {name.partition("/")[0] for name in files if "/" in name}
    assert folders == set(json.loads((npm_package / "package.json").read_text(encoding="utf-8"))["files"])


def test_the_types_know_right_from_wrong(application: Path, node: str, node_modules: Path) -> None:
    """As an application compiles them: the libraries are installed beside them, and declarations are checked too."""
    for library in node_modules.iterdir():
        (application / "node_modules" / library.name).symlink_to(library)
    (application / "use.ts").write_text(TYPESCRIPT, encoding="utf-8")
    options = ["--noEmit", "--strict", "--target", "es2022", "--lib", "es2022,dom", "--module", "esnext",
               "--moduleResolution", "bundler", "--types", ""]  # fmt: skip
    run([node, node_modules / "typescript" / "bin" / "tsc", *options, "use.ts"], application)


@pytest.mark.browser
@pytest.mark.parametrize("bundler", ["vite", "webpack"])
def test_a_page_that_a_bundler_built_gets_a_reply(
    bundler: str, application: Path, browser: Browser, web_server: WebServer, node: str, node_modules: Path
) -> None:
    """The example of the package's README; under the strict policy of docs/web.md, which no blob nor data: passes."""
    text = (application / "node_modules" / "embedllm-web" / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```js\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert '{ engine: "javascript" }' in example
    options = {"engine": "javascript", "device": "wasm", "urls": urls(web_server)}
    main = example.replace('{ engine: "javascript" }', json.dumps(options))
    (application / "main.js").write_text(main + "document.body.id = 'answered';\n", encoding="utf-8")
    (application / "index.html").write_text(
        f'<!doctype html>{ICON}<title>built</title><body></body><script type="module" src="main.js"></script>',
        encoding="utf-8",
    )
    if bundler == "vite":
        version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
        if tuple(map(int, version.strip().lstrip("v").split(".")[:2])) < (20, 19):
            pytest.skip(f"Node.js is {version.strip()}; Vite 8 needs 20.19 or newer")
        run([node, node_modules / "vite" / "bin" / "vite.js", "build"], application)
    else:
        run([node, "--input-type=module", "-e", WEBPACK, node_modules, application], application)
        shutil.copy(application / "index.html", application / "dist")
    web_server.serve("/models/demo", package_folder("demo"))
    web_server.headers("/", POLICY)
    page = browser.context().page(web_server.serve("/", application / "dist") + "/")
    page.wait_for("#answered", patience_s=60)  # errors are said by the fixture of the browser
    with embedllm.load("demo", device="cpu") as llm:
        expected = llm.generate([{"role": "user", "content": "list files by size"}])
    assert page.text("body").split() == expected.text.split()
