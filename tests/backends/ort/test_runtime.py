"""What runs in ONNX Runtime are given."""

from __future__ import annotations

import onnxruntime as ort

from embedllm.backends.ort.runtime import run_options


def test_runs_name_the_captured_graph_whose_absence_would_be_an_exception_in_each() -> None:
    name = getattr(ort.capi.onnxruntime_inference_collection, "_GPU_GRAPH_ID_RUN_CONFIG_KEY", "gpu_graph_id")
    assert run_options().get_run_config_entry(name) == "0"
