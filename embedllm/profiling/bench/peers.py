"""Other engines, through the public API of each, greedy and with the same num_threads. None has type information.

onnxruntime-genai 0.18, openvino-genai 2026.4, llama-cpp-python 0.3.36 or xllamacpp 2026.10, transformers 5.24 with
torch 2.13.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

from embedllm.profiling.bench.engine import About, Facts
from embedllm.profiling.bench.peer_models import folder_facts, gguf_facts, transformers_facts


class Genai:
    """onnxruntime-genai on the CPU, over a folder that has a genai_config.json."""

    def __init__(self, path: str, *, threads: int, capacity: int) -> None:
        """capacity: tokens for which KV memory is allocated up front, with each generator."""
        self._og: Any = importlib.import_module("onnxruntime_genai")
        config = self._og.Config(path)
        if threads:
            options = {"model": {"decoder": {"session_options": {"intra_op_num_threads": threads}}}}
            config.overlay(json.dumps(options))
        self._model = self._og.Model(config)
        self._capacity = capacity
        self._generator: Any = None
        self._token_ids: list[int] = []
        self._options = path, threads

    @cached_property
    def about(self) -> About:
        path, threads = self._options
        facts = folder_facts(Path(path), kv_bits=32)  # the float32 graph's
        versions = {"onnxruntime-genai": self._og.__version__, "onnxruntime": metadata.version("onnxruntime")}
        return _about(facts, versions, threads, keeps=True)

    def run(self, tokens: Sequence[int], count: int) -> list[float]:
        start, times = time.perf_counter(), []
        shared = shared_start(self._token_ids, tokens)
        self._generator = self._begun(shared)
        self._generator.append_tokens(list(tokens[shared:]))
        for _ in range(count):
            self._generator.generate_next_token()
            self._generator.get_next_tokens()
            times.append(time.perf_counter() - start)
        self._token_ids = [int(token) for token in self._generator.get_sequence(0)][:-1]  # the last one was not fed yet
        return times

    def _begun(self, count: int) -> Any:  # noqa: ANN401
        """A generator with the first `count` tokens of the last one."""
        if count:
            self._generator.rewind_to(count)
            return self._generator
        self._generator = None  # the old one's memory goes before the new one's is taken
        parameters = self._og.GeneratorParams(self._model)
        parameters.set_search_options(do_sample=False, min_length=self._capacity, max_length=self._capacity)
        return self._og.Generator(self._model, parameters)


class OpenVINOGenai:
    """openvino-genai's LLMPipeline on the CPU, over a folder that has the tokenizer in OpenVINO's form."""

    def __init__(self, path: str, *, threads: int, capacity: int) -> None:
        """Raises ValueError for a folder without that tokenizer."""
        if not (Path(path) / "openvino_tokenizer.xml").exists():
            raise ValueError(
                f"'{path}' has no openvino_tokenizer.xml, which openvino-genai wants. "
                "Export the model with: embedllm export ... --openvino-tokenizer"
            )
        self._ov: Any = importlib.import_module("openvino")
        self._genai: Any = importlib.import_module("openvino_genai")
        options = {"INFERENCE_NUM_THREADS": threads} if threads else {}
        self._pipeline = self._genai.LLMPipeline(path, "CPU", **options)
        self._options = path, threads

    @cached_property
    def about(self) -> About:
        path, threads = self._options
        facts = folder_facts(Path(path), kv_bits=9)  # 8 bits and a share of a scale and a zero point, its default
        versions = {"openvino-genai": self._genai.get_version(), "openvino": self._ov.get_version()}
        return _about(facts, versions, threads, keeps=False)  # its prefix cache holds an uncertain share

    def run(self, tokens: Sequence[int], count: int) -> list[float]:
        """Its own clock: of a streamer that asks in Python for each token it would be a little slower."""
        ids = self._ov.Tensor(_row(tokens))
        mask = self._ov.Tensor(_row([1] * len(tokens)))
        config = self._genai.GenerationConfig(max_new_tokens=count, ignore_eos=True, do_sample=False)
        metrics = self._pipeline.generate(self._genai.TokenizedInputs(ids, mask), config).perf_metrics
        token_times = list(metrics.raw_metrics.m_new_token_times)  # milliseconds, of a clock of its own
        first_s = metrics.get_ttft().mean / 1000
        return [first_s + (at - token_times[0]) / 1000 for at in token_times]


class LlamaCpp:
    """llama.cpp by llama-cpp-python, over a GGUF file."""

    def __init__(self, path: str, *, threads: int, capacity: int) -> None:
        """capacity: tokens for which KV memory is allocated up front."""
        self._module: Any = importlib.import_module("llama_cpp")
        options = {"n_threads": threads, "n_threads_batch": threads} if threads else {}
        self._llama = self._module.Llama(path, n_ctx=capacity, verbose=False, **options)
        self._options = path, threads

    @cached_property
    def about(self) -> About:
        path, threads = self._options
        features = " ".join(self._module.llama_print_system_info().decode(errors="replace").split())
        facts = gguf_facts(Path(path), self._llama.metadata, self._llama.n_vocab())
        versions = {"llama-cpp-python": self._module.__version__}
        return _about(facts, versions, threads, keeps=True, hardware=features)

    def run(self, tokens: Sequence[int], count: int) -> list[float]:
        start, times = time.perf_counter(), []
        for _ in self._llama.generate(list(tokens), temp=0.0):
            times.append(time.perf_counter() - start)
            if len(times) == count:
                break
        return times


class XllamaCpp:
    """llama.cpp by xllamacpp, whose wheels need no compiler, over a GGUF file: its server, called in this process."""

    def __init__(self, path: str, *, threads: int, capacity: int) -> None:
        """capacity: tokens for which KV memory is allocated up front."""
        self._module: Any = importlib.import_module("xllamacpp")
        options = self._module.CommonParams()
        options.model.path, options.n_ctx, options.n_parallel, options.verbosity = path, capacity, 1, 0
        if threads:
            options.cpuparams.n_threads = options.cpuparams_batch.n_threads = threads
        self._server = self._module.Server(options)
        self._options = path, threads

    @cached_property
    def about(self) -> About:
        from embedllm.export.gguf.reader import read_model

        path, threads = self._options
        metadata = read_model(Path(path)).metadata
        words = {key: str(value) for key, value in metadata.items() if isinstance(value, int | str)}
        tokens = metadata["tokenizer.ggml.tokens"]
        assert isinstance(tokens, list)
        versions = {"xllamacpp": self._module.__version__}
        features = " ".join(self._module.get_system_info().split())
        return _about(gguf_facts(Path(path), words, len(tokens)), versions, threads, keeps=True, hardware=features)

    def run(self, tokens: Sequence[int], count: int) -> list[float]:
        """A chunk comes when its text is whole, so that some have several tokens: each of these came then."""
        start, times = time.perf_counter(), []

        def note(chunk: dict[str, Any]) -> bool:
            token_count = chunk.get("timings", {}).get("predicted_n", len(times))
            times.extend([time.perf_counter() - start] * (token_count - len(times)))
            return False  # True stops

        self._server.handle_completions({"prompt": list(tokens), "n_predict": count, "temperature": 0.0, "stream": True,
                                         "ignore_eos": True, "timings_per_token": True}, note)  # fmt: skip
        return times


def llama_cpp(path: str, *, threads: int, capacity: int) -> LlamaCpp | XllamaCpp:
    """By whichever package is there."""
    kind = XllamaCpp if importlib.util.find_spec("llama_cpp") is None else LlamaCpp
    return kind(path, threads=threads, capacity=capacity)


class Transformers:
    """transformers with torch on the CPU, over a Hugging Face folder, in the checkpoint's own type."""

    def __init__(self, path: str, *, threads: int, capacity: int) -> None:
        self._torch: Any = importlib.import_module("torch")
        self._transformers: Any = importlib.import_module("transformers")
        if threads:
            self._torch.set_num_threads(threads)
        self._model = self._transformers.AutoModelForCausalLM.from_pretrained(path, dtype="auto", local_files_only=True)
        self._model.eval()
        self._cache: Any = None
        # "cache" since 5.24; a model takes a name that it does not know without a word, and computes without a KV cache
        names = inspect.signature(self._model.forward).parameters
        self._cache_name = "cache" if "cache" in names else "past_key_values"
        self._token_ids: list[int] = []
        self._options = path, threads

    @cached_property
    def about(self) -> About:
        path, threads = self._options
        versions = {"transformers": self._transformers.__version__, "torch": self._torch.__version__}
        facts = transformers_facts(Path(path), self._model.config, self._model.dtype.itemsize)
        return _about(facts, versions, threads, keeps=True)

    def run(self, tokens: Sequence[int], count: int) -> list[float]:
        start, times = time.perf_counter(), []
        shared = shared_start(self._token_ids, tokens)
        if shared:
            surplus = len(self._token_ids) - shared
            if surplus:
                self._cache.crop(-surplus)
        else:
            self._cache = self._transformers.DynamicCache(config=self._model.config)
        fed, self._token_ids = list(tokens[shared:]), list(tokens[:shared])
        with self._torch.inference_mode():
            for _ in range(count):
                self._token_ids += fed
                ids, given = self._torch.tensor([fed]), {self._cache_name: self._cache}
                logits = self._model(ids, **given, use_cache=True, logits_to_keep=1).logits
                fed = [int(logits[0, -1].argmax())]
                times.append(time.perf_counter() - start)
        return times


def shared_start(cached_tokens: Sequence[int], tokens: Sequence[int]) -> int:
    """How many tokens of a prompt are held already; at least its last one has to be computed."""
    count = 0
    for ours, theirs in zip(cached_tokens, tokens[:-1], strict=False):
        if ours != theirs:
            break
        count += 1
    return count


def _row(tokens: Sequence[int]) -> Any:  # noqa: ANN401 - an array
    import numpy as np

    return np.array([tokens], np.int64)


def _about(facts: Facts, versions: dict[str, str], threads: int, *, keeps: bool, hardware: str = "") -> About:
    return About(**asdict(facts), versions=versions, device="cpu", hardware=hardware, on_host=True, threads=threads,
                 keeps=keeps)  # fmt: skip
