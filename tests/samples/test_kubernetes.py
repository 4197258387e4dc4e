"""The manifests of samples/kubernetes name what `embedllm serve` has."""

from __future__ import annotations

from pathlib import Path

import yaml

from embedllm.cli.commands.serve import serve
from embedllm.server import health

FOLDER = Path(__file__).parents[2] / "samples" / "kubernetes"


def test_the_runtime_starts_the_server_and_asks_what_it_has() -> None:
    runtime = yaml.safe_load((FOLDER / "serving_runtime.yaml").read_text(encoding="utf-8"))
    (container,) = runtime["spec"]["containers"]
    command, *arguments = container["args"]
    given = serve.make_context(command, arguments).params
    assert (given["host"], given["no_auth"]) == ("0.0.0.0", True)
    assert given["models"] == ("{{.Name}}=/mnt/models",)
    paths = {row.path for row in health.endpoints()}
    for probe in ("readinessProbe", "livenessProbe"):
        asked = container[probe]["httpGet"]
        assert asked["path"] in paths
        assert asked["port"] == given["port"]
    assert container["ports"][0]["containerPort"] == given["port"]
    annotations = runtime["spec"]["annotations"]
    assert annotations["prometheus.io/path"] in paths
    assert annotations["prometheus.io/port"] == str(given["port"])


def test_the_service_is_of_the_runtime() -> None:
    runtime = yaml.safe_load((FOLDER / "serving_runtime.yaml").read_text(encoding="utf-8"))
    service = yaml.safe_load((FOLDER / "inference_service.yaml").read_text(encoding="utf-8"))
    model = service["spec"]["predictor"]["model"]
    assert model["runtime"] == runtime["metadata"]["name"]
    assert model["modelFormat"]["name"] == runtime["spec"]["supportedModelFormats"][0]["name"]
