"""What runs in ONNX Runtime are given."""

from __future__ import annotations

from embedllm.backends.ort.runtime import run_options


def test_runs_name_the_captured_graph_whose_absence_would_be_an_exception_in_each() -> None:
    assert run_options().get_run_config_entry("gpu_graph_id") == "0"
