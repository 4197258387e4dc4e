"""Health, metrics, the OpenAPI description, the page, and what the log has."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import re

import httpx
import jsonschema
import pytest

from tests.server.serving import Served

BODY = {"messages": [{"role": "user", "content": "secret-of-the-test"}], "max_tokens": 4}


def samples(http: httpx.Client) -> dict[str, float]:
    """The values of /metrics by name and labels."""
    page = http.get("/metrics")
    assert page.headers["content-type"].startswith("text/plain")
    lines = [line for line in page.text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_metrics_count_what_was_done(http: httpx.Client) -> None:
    before = samples(http)
    used = http.post("/v1/chat/completions", json=BODY).json()["usage"]
    http.get("/secret-path")
    after = samples(http)

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0.0)

    of_model = '{model_name="demo"}'
    assert grown(f"embedllm_generation_tokens_total{of_model}") == used["completion_tokens"] == 4
    assert grown(f"embedllm_prompt_tokens_total{of_model}") == used["prompt_tokens"]
    assert grown(f"embedllm_time_to_first_token_seconds_count{of_model}") == 1
    assert grown('embedllm_requests_total{path="/v1/chat/completions",status="200"}') == 1
    assert grown('embedllm_requests_total{path="other",status="404"}') == 1
    assert not any("secret" in name for name in after)
    for gauge in ("num_requests_waiting", "num_requests_running", "kv_cache_usage_perc"):
        assert 0 <= after[f"embedllm_{gauge}{of_model}"] <= 1
    assert grown(f"embedllm_num_preemptions_total{of_model}") == 0
    assert after[f"embedllm_model_loaded{of_model}"] == 1


def test_the_log_has_neither_prompts_nor_keys(http: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        headers = {"authorization": "Bearer key-of-the-test"}
        http.post("/v1/chat/completions?a=query-of-the-test", json=BODY, headers=headers)
        http.post("/v1/chat/completions", json={**BODY, "temperature": "secret-of-the-test"}, headers=headers)
        http.get("/a%0ab%1b[31m")
    records = [one for one in caplog.records if one.name.startswith(("embedllm", "uvicorn"))]
    said = "\n".join(one.getMessage() for one in records)
    assert "POST '/v1/chat/completions' 200" in said
    assert not re.search("secret-of|key-of|query-of|\x1b", said)
    assert "\nb" not in said


def test_the_description_has_all_paths_and_their_schemas(http: httpx.Client) -> None:
    page = http.get("/openapi.json").json()
    assert page["openapi"] == "3.1.0"
    assert {"/v1/chat/completions", "/v1/models/{name}", "/health", "/metrics", "/tokenize"} <= set(page["paths"])
    for name, schema in page["components"]["schemas"].items():
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["type"] == "object", name
    references = re.findall(r'"\$ref": "#/components/schemas/(\w+)"', json.dumps(page))
    assert set(references) <= set(page["components"]["schemas"])
    jsonschema.validate(BODY, page["components"]["schemas"]["ChatCompletionRequest"])
    for nothing in ({**BODY, "temperature": None}, {**BODY, "tools": None}):  # null is as good as nothing
        jsonschema.validate(nothing, page["components"]["schemas"]["ChatCompletionRequest"])
    found = [operation["operationId"] for path in page["paths"].values() for operation in path.values()]
    assert len(found) == len(set(found))


def test_the_page_runs_its_own_script_and_nothing_else(http: httpx.Client) -> None:
    response = http.get("/")
    policy = response.headers["content-security-policy"]
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    for tag in ("script", "style"):
        (text,) = re.findall(f"<{tag}>(.*?)</{tag}>", response.text, re.DOTALL)
        assert f"{tag}-src 'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"https?:|<link|<img|src=|innerHTML|\son\w+=", response.text)


def test_paths_and_methods_that_there_are_not(http: httpx.Client) -> None:
    missing = http.get("/etc/../../passwd")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "unknown_url")
    wrong = http.get("/v1/chat/completions")
    assert (wrong.status_code, wrong.json()["error"]["type"]) == (405, "invalid_request_error")
    assert wrong.headers["allow"] == "POST"
    assert set(http.post("/v1/responses/x").headers["allow"].split(", ")) == {"GET", "HEAD", "DELETE"}
    assert http.get("/v1/models/../../etc/passwd").status_code == 404
    assert http.get("/v1/models/%2e%2e%2fetc").json()["error"]["code"] == "model_not_found"


def test_a_slash_at_the_end_of_a_path_makes_no_redirect(http: httpx.Client) -> None:
    """A redirect names http://, to which a client of a proxy that ends TLS would send its prompt in clear text."""
    assert http.get("/v1/models/").json() == http.get("/v1/models").json()
    assert http.get("/health/").status_code == 200
    body = {"messages": [{"role": "user", "content": "ls"}], "max_tokens": 1}
    assert http.post("/v1/chat/completions/", json=body).status_code == 200
    assert http.post("/v1/messages/?beta=true", json={**body, "model": "demo"}).status_code == 200


def test_ready_and_the_request_id(served: Served, http: httpx.Client) -> None:
    ready = http.get("/ready")
    assert ready.json()["status"] == "ready"
    assert re.fullmatch("req_[0-9a-f]{24}", ready.headers["x-request-id"])
    assert ready.headers["x-content-type-options"] == "nosniff"
    assert "server" not in ready.headers
