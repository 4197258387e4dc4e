"""Text in a browser: tokens, prompts and defaults of the JavaScript modules are those of Python."""

from __future__ import annotations

import json
import math
import os
import random
import re
import subprocess
import unicodedata
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

import embedllm
from embedllm.errors import PackageError, TemplateError
from embedllm.export.gguf.tokenizers.pre_tokenizers import PRE_TOKENIZERS
from embedllm.generation.defaults import read_defaults
from embedllm.text.chat_template import ChatTemplate
from embedllm.text.jinja_sandbox import SandboxedTemplate
from embedllm.text.stream import text_after
from embedllm.text.tokenizer import Tokenizer
from embedllm.tools.selection import reply_format
from tests.support.gguf_tokenizers import CHARSMAP
from tests.text.test_chat_template import CALLS_BY_NONE, EXPECTED, WITHOUT_TEXT, calls_without_text
from tests.web.support import template_cases, template_grid, tokenizer_kinds
from tests.web.support.tokenizer_kinds import CONFIGS, KINDS, strings

FOLDER = Path(__file__).parent / "node"
DEMO = Path(embedllm.__file__).parent / "demo"

# What the JavaScript tokenizer differs in, and what is done about it; each is refused when the folder is opened.
GAPS: dict[str, tuple[Callable[[tokenizers.Tokenizer], None], str]] = {
    "scripts apart": (
        lambda engine: setattr(engine, "pre_tokenizer", pre_tokenizers.UnicodeScripts()),
        "pre-tokenizer 'UnicodeScripts'",
    ),
    "speech": (lambda engine: setattr(engine, "decoder", decoders.CTC()), "decoder 'CTC'"),
    "whole words": (
        lambda engine: setattr(engine, "model", models.WordLevel({"a": 0}, unk_token="a")),
        "model 'WordLevel'",
    ),
    "ends of words": (
        lambda engine: setattr(engine, "model", models.BPE({"a": 0}, [], end_of_word_suffix="</w>")),
        "prefix or suffix",
    ),
    "chance": (lambda engine: setattr(engine, "model", models.BPE({"a": 0}, [], dropout=0.5)), "dropout"),
    "what a match keeps": (
        lambda engine: setattr(engine, "pre_tokenizer", pre_tokenizers.Split(tokenizers.Regex(r"\s++$"), "isolated")),
        "the pattern",
    ),
    "where the last match ended": (
        lambda engine: setattr(engine, "pre_tokenizer", pre_tokenizers.Split(tokenizers.Regex(r"\G\d\d"), "isolated")),
        "the pattern",
    ),
}


def run_node(node: str, node_modules: Path, script: str, vectors: object, folder: Path) -> None:
    """Runs a test of Node's with vectors, which it reads from a file."""
    path = folder / "vectors.json"
    path.write_text(json.dumps(vectors), encoding="utf-8")
    environment = {**os.environ, "EMBEDLLM_NODE_MODULES": str(node_modules), "EMBEDLLM_VECTORS": str(path), "TZ": "UTC"}
    done = subprocess.run(
        [node, "--test", str(FOLDER / script)], capture_output=True, encoding="utf-8", env=environment, timeout=300
    )
    assert done.returncode == 0, failures_of(done.stdout) + done.stderr[-2000:]


def failures_of(output: str) -> str:
    """What Node says of the tests that failed: among hundreds they are hard to find."""
    found = [block for block in output.split("# Subtest: ") if "\nnot ok " in block]
    return "\n".join(found)[:8000] or output[-8000:]


def texts_of(folder: Path) -> dict[str, str]:
    names = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
    return {name: (folder / name).read_text("utf-8") for name in names if (folder / name).is_file()}


def vectors_of(name: str, folder: Path, count: int) -> dict[str, Any]:
    """What Python makes of many texts, and of many tokens, with the tokenizer of a folder."""
    tokenizer = Tokenizer.open(folder)
    chance = random.Random(name)
    texts = list(strings(len(name), count))
    encoded = [(text, *(tokenizer.encode(text, special=special) for special in (False, True))) for text in texts]
    runs = [tokens for _, _, tokens in encoded]
    runs += [[chance.randrange(tokenizer.size + 3) for _ in range(chance.randint(0, 30))] for _ in range(count)]
    hostile = [token for spelling in ("<0xE6>", "<0x97>", "<0xA5>", "<0xEF>", "<0xBB>", "<0xBF>", "æ", "Ĺ", "▁", "</s>")
               if (token := tokenizer.token_id(spelling)) is not None]  # fmt: skip
    runs += [[chance.choice(hostile) for _ in range(6)] for _ in range(count) if hostile]
    return {
        "name": name,
        "texts": texts_of(folder),
        "special": sorted(tokenizer.special_tokens),
        "named": tokenizer.named,
        "size": tokenizer.size,
        "spellings": [tokenizer.token_text(token) for token in range(tokenizer.size + 2)],
        "ids": [(text, tokenizer.token_id(text)) for text in [*tokenizer_kinds.SPECIAL, "<new>", "the", "nowhere"]],
        "encoded": encoded,
        "continued": [
            (run[:at], run[at:], text_after(tokenizer, run[:at], run[at:]))
            for run in runs
            for at in {len(run) // 3, len(run) // 2}
        ],
        "decoded": [(run, tokenizer.decode(run), tokenizer.decode(run, special=True)) for run in runs],
    }


def test_tokens_and_texts_are_those_of_python(tmp_path: Path, node: str, node_modules: Path) -> None:
    kinds = [vectors_of("demo", DEMO, 300)]
    for build in KINDS:
        folder = tmp_path / build.__name__
        folder.mkdir()
        build().save(str(folder / "tokenizer.json"))
        config = CONFIGS.get(build.__name__)
        if config is not None:
            (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
        kinds.append(vectors_of(build.__name__, folder, 170))
    more = {"letters": letters(), "splits": splits(), "unknown": unknown(tmp_path)}
    vectors = {"kinds": kinds, **more, **faults(tmp_path)}
    run_node(node, node_modules, "tokenizer.test.mjs", vectors, tmp_path)


def letters() -> dict[str, Any]:
    """What the parts of encoders' tokenizers make of single characters: all of the first, a part of the later ones."""
    codes = [code for code in range(0x20000) if unicodedata.category(chr(code)) not in ("Cn", "Cs")]
    codes = [code for code in codes if code < 0x3100 or code % 11 == 0 or 0x10000 < code < 0x12000]
    parts = [
        normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=False, strip_accents=False, lowercase=False),
        normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=True, strip_accents=None, lowercase=True),
        normalizers.NFKC(),
        normalizers.NFKD(),
        normalizers.Nmt(),
        normalizers.StripAccents(),
        normalizers.Precompiled(CHARSMAP),
    ]
    made: list[dict[str, Any]] = []
    for part in parts:
        texts = {code: part.normalize_str(f"a {chr(code)} b") for code in codes}
        changed = {code: text[2:-2] for code, text in texts.items() if text[2:-2] != chr(code)}
        made.append({"part": json.loads(part.__getstate__()), "changed": changed})
    cuts: list[dict[str, Any]] = []
    for cutter in (pre_tokenizers.BertPreTokenizer(), pre_tokenizers.Punctuation()):
        counts = {code: len(cutter.pre_tokenize_str(f"a{chr(code)}b")) for code in codes}
        found = {code: count for code, count in counts.items() if count != 1}
        cuts.append({"part": json.loads(cutter.__getstate__()), "cuts": found})
    return {"codes": codes, "normalizers": made, "preTokenizers": cuts}


def splits() -> list[dict[str, Any]]:
    """What the pre-tokenizers that GGUF files name make of texts, pattern by pattern."""
    patterns = sorted({regex for one in PRE_TOKENIZERS.values() for regex in (*one.regexes, *one.byte_regexes)})
    texts = [text[:300] for text in strings(11, 40)] + ["漢字kanjiABCかな 漢A", "1234567, 12 1234x56789"]
    made: list[dict[str, Any]] = []
    for pattern in patterns:
        part = pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
        cuts = [(text, [piece for piece, _ in part.pre_tokenize_str(text)]) for text in texts]
        made.append({"part": json.loads(part.__getstate__()), "cuts": cuts})
    return made


def unknown(folder: Path) -> list[dict[str, Any]]:
    """A tokenizer whose unknown token is not in its vocabulary, and a text that would need it."""
    inside = folder / "unknown"
    inside.mkdir()
    model = models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")], unk_token="<unk>")
    tokenizers.Tokenizer(model).save(str(inside / "tokenizer.json"))
    tokenizer = Tokenizer.open(inside)
    with pytest.raises(PackageError, match=r"not in the vocabulary either .*<unk>"):
        tokenizer.encode("aéb", special=False)
    tokens = tokenizer.encode("aab", special=False)
    return [{"texts": texts_of(inside), "known": "aab", "tokens": tokens, "text": "aéb", "odd": "é"}]


def faults(folder: Path) -> dict[str, Any]:
    """Folders that Python refuses, and those that only a browser does."""
    good = tokenizer_kinds.gpt2().to_str()
    damaged: list[dict[str, Any]] = [{"name": "nothing", "texts": {}}]
    for content in ("", "{", "[]", '{"version": "1.0"}', good.replace('"NFC"', '"Ω"').replace('"ByteLevel"', '"Nope"')):
        damaged.append({"name": content[:20], "texts": {"tokenizer.json": content}})
    configs = (
        "",
        "[]",
        '{"eos_token": {"id": 3}}',
        '{"added_tokens_decoder": {"x": {}}}',
        '{"extra_special_tokens": 3}',
    )
    for content in configs:
        damaged.append({"name": content, "texts": {"tokenizer.json": good, "tokenizer_config.json": content}})
    for place, fault in enumerate(damaged):
        inside = folder / f"damaged{place}"
        inside.mkdir()
        for name, content in fault["texts"].items():
            (inside / name).write_text(content, encoding="utf-8")
        with pytest.raises(PackageError):
            Tokenizer.open(inside)
    refused: list[dict[str, Any]] = []
    for name, (change, words) in GAPS.items():
        engine = tokenizer_kinds.llama2()
        change(engine)
        refused.append({"name": name, "texts": {"tokenizer.json": engine.to_str()}, "words": words})
    return {"damaged": damaged, "refused": refused}


# --- chat templates and defaults

# Prompts that a browser does not make: the template, the conversation, and what the error says.
PROMPT_GAPS = {("jamba", "documents"): "No filter named 'wordwrap'"}

LIST = {"chat_template": [{"name": "default", "template": "list"}, {"name": "tool_use", "template": "list tools"}]}
PLACES: list[dict[str, str]] = [
    {"tokenizer_config.json": json.dumps({"chat_template": "config"})},
    {"tokenizer_config.json": json.dumps(LIST)},
    {"tokenizer_config.json": json.dumps(LIST), "chat_template.jinja": "file\n"},
    {"chat_template.jinja": "file", "additional_chat_templates/tool_use.jinja": "more"},
    {"chat_template.json": json.dumps({"chat_template": "processor"})},
    {
        "tokenizer_config.json": json.dumps(
            {"chat_template": "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}", "eos_token": {"content": "</s>"}}
        ),
        "special_tokens_map.json": json.dumps({"bos_token": "<s>"}),
    },
]
USER = [{"role": "user", "content": "Hi"}]

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {"name": "find", "description": 'finds "things"', "parameters": {"type": "object"}},
    },
    {"name": "now", "description": "é", "parameters": {"type": "object", "properties": {}}},
]
_CALLS = [
    {"id": "c1", "type": "function", "function": {"name": "find", "arguments": {"a": 1, "b": ["x", None]}}},
    {"id": "c2", "type": "function", "function": {"name": "now", "arguments": "{}"}},
    {"id": "c3", "type": "function", "function": {"name": "now", "arguments": "no JSON"}},
]
TOOL_TALKS: list[list[Any]] = [
    USER,
    [{"role": "system", "content": "Be brief."}, *USER],
    [
        *USER,
        {"role": "assistant", "content": "I look.", "tool_calls": _CALLS},
        {"role": "tool", "tool_call_id": "c2", "content": "noon"},
        {"role": "tool", "name": "find", "content": "a box"},
        {"role": "user", "content": "Which?"},
    ],
]

# generation_config.json, and what a PackageError says of it.
DEFAULTS: list[tuple[str | None, str]] = [
    (None, ""),
    ("{}", ""),
    ('{"do_sample": false, "temperature": 0.7}', ""),
    ('{"repetition_penalty": 1.1, "max_new_tokens": 2048, "max_length": 20}', ""),
    ('{"do_sample": true, "top_k": null, "top_p": null}', ""),
    ('{"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.1, "typical_p": 0.9}', ""),
    ('{"do_sample": null, "max_new_tokens": null}', ""),
    ('{"no_repeat_ngram_size": 3, "bad_words_ids": [[7], [8, 9]], "suppress_tokens": [5, 3]}', ""),
    ('{"no_repeat_ngram_size": 0, "bad_words_ids": [], "suppress_tokens": []}', ""),
    ('{"no_repeat_ngram_size": null, "bad_words_ids": null, "suppress_tokens": null}', ""),
    ("", "."),
    ("[]", "no JSON object"),
    ("null", "no JSON object"),
    ('{"do_sample": true,}', "."),
    ('{"max_new_tokens": 0}', "max_new_tokens is 0"),
    ('{"max_new_tokens": 2.5}', "max_new_tokens is 2.5"),
    ('{"max_new_tokens": true}', "max_new_tokens is true"),
    ('{"do_sample": true, "temperature": -1}', "temperature is -1"),
    ('{"no_repeat_ngram_size": -1}', "no_repeat_ngram is -1; expected 0 .off. or more"),
    ('{"no_repeat_ngram_size": 1.5}', "no_repeat_ngram is 1.5; expected a whole number, 0 = off"),
    ('{"bad_words_ids": 5}', "bad_words is 5; expected a list"),
    ('{"bad_words_ids": [5]}', "bad_words has 5; expected"),
    ('{"bad_words_ids": [[]]}', "bad_words has .*; expected"),
    ('{"bad_words_ids": [[7, -1]]}', "bad_words has .*-1.*; expected"),
    ('{"suppress_tokens": 5}', "."),
    ('{"suppress_tokens": [-5]}', "logit_bias has the token -5; expected token ids"),
]


def test_prompts_and_defaults_are_those_of_python(tmp_path: Path, node: str, node_modules: Path) -> None:
    vectors = {
        "goldens": [*(golden(name) for name in EXPECTED.names()), calls_by_none()],
        "expressions": [expression(source) for source in (*template_cases.EXPRESSIONS, *template_grid.EXPRESSIONS)],
        "variables": template_cases.VARIABLES,
        "grid": [(source, expression(source)["expected"]) for source in template_grid.grid(600)],
        "attacks": template_cases.ATTACKS,
        "gaps": template_cases.GAPS,
        "places": [place(tmp_path / f"place{at}", texts) for at, texts in enumerate(PLACES)],
        "tools": [without_tools(name) for name in EXPECTED.names()],
        "defaults": [defaults(tmp_path / f"defaults{at}", *case) for at, case in enumerate(DEFAULTS)],
    }
    failures = [entry for entry in vectors["expressions"] if entry["expected"] is None]
    assert len(failures) < len(vectors["expressions"]) / 2, "most expressions should be ones that Jinja takes"
    run_node(node, node_modules, "chat.test.mjs", vectors, tmp_path)


def golden(name: str) -> dict[str, Any]:
    """What transformers made of every conversation with one template."""
    expected = EXPECTED.read(f"expected/{name}")
    conversations = EXPECTED.conversations()
    return {
        "name": name,
        "source": (Path(EXPECTED.FOLDER) / f"{name}.jinja").read_text(encoding="utf-8"),
        "tokens": expected["tokens"],
        "prompts": [
            {"title": title, "given": conversations[title], "expected": made, "gap": PROMPT_GAPS.get((name, title))}
            for title, made in expected["prompts"].items()
        ],
    }


def calls_by_none() -> dict[str, Any]:
    """What a template that tells calls by a content of none makes of them."""
    template, talks = ChatTemplate(CALLS_BY_NONE), [calls_without_text(content) for content in WITHOUT_TEXT]
    prompts = [{"title": str(talk), "given": {"messages": talk}, "expected": template.render(talk), "gap": None}
               for talk in talks]  # fmt: skip
    return {"name": "calls by none", "source": CALLS_BY_NONE, "tokens": {}, "prompts": prompts}


def without_tools(name: str) -> dict[str, Any]:
    """What one template leaves out of tools, and the prompts with the messages that make up for it."""
    source = (Path(EXPECTED.FOLDER) / f"{name}.jinja").read_text(encoding="utf-8")
    tokens = EXPECTED.read(f"expected/{name}")["tokens"]
    template = ChatTemplate(source, tokens=tokens, clock=lambda: EXPECTED.CLOCK)
    gaps = reply_format(template).gaps
    return {
        "source": source,
        "tokens": tokens,
        "gaps": {"hidesTools": sorted(gaps.hides_tools), "hidesCalls": gaps.hides_calls, "hasSystem": gaps.has_system},
        "prompts": [
            [messages, template.render(gaps.filled(messages, TOOLS))] for messages in TOOL_TALKS
        ] if gaps.hides_calls and gaps.has_system else [],
        "toolSchemas": TOOLS,
    }  # fmt: skip


def expression(source: str) -> dict[str, Any]:
    """What Jinja makes of an expression, None for an error."""
    try:
        expected = SandboxedTemplate(source, clock=lambda: EXPECTED.CLOCK).render(deepcopy(template_cases.VARIABLES))
    except TemplateError:
        expected = None
    return {"source": source, "expected": expected}


def place(folder: Path, texts: dict[str, str]) -> dict[str, Any]:
    """The prompts that a folder's template makes without and with tools."""
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    template = ChatTemplate.open(folder)
    return {"texts": texts, "plain": template.render(USER), "tools": template.render(USER, tools=[])}


def defaults(folder: Path, text: str | None, words: str) -> dict[str, Any]:
    """The defaults of a folder with this generation_config.json, None where it is refused."""
    folder.mkdir()
    if text is not None:
        (folder / "generation_config.json").write_text(text, encoding="utf-8")
    if words:
        with pytest.raises(PackageError, match=re.compile(words, re.IGNORECASE)):
            read_defaults(folder)
        return {"text": text, "expected": None, "words": words}
    read = read_defaults(folder)
    names = ("temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty", "presence_penalty",
             "frequency_penalty", "no_repeat_ngram", "seed")  # fmt: skip
    sampling = {name: getattr(read.sampling, name) for name in names}
    biases = dict(read.sampling.logit_bias)
    assert set(biases.values()) <= {-math.inf}  # which JSON has not
    sampling["logit_bias"] = [*biases]
    bans = bool(read.sampling.bad_words)
    return {"text": text, "expected": {"sampling": sampling, "max_tokens": read.max_tokens, "bans": bans}, "words": ""}
