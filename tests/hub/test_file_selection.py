"""embedllm.hub.name and hub_choice: what a name means, and which files of a repository are meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from embedllm.errors import HubError
from embedllm.hub.file_selection import Choice, choose
from embedllm.hub.name import HubName, hub_name

PARTS = tuple(f"q8/m-Q8_0-0000{number}-of-00003.gguf" for number in (1, 2, 3))
GGUFS = dict.fromkeys(("m-Q4_0.gguf", "m-Q4_K_M.gguf", *PARTS), 2_000_000_000)
CHECKPOINT = dict.fromkeys(("config.json", "model.safetensors", "tokenizer.json"), 10)
GENAI = dict.fromkeys(("cpu/genai_config.json", "cpu/model.onnx", "cpu/model.onnx.data", "cpu/tokenizer.json"), 1)
OPENVINO = dict.fromkeys(("config.json", "openvino_model.xml", "openvino_model.bin", "openvino_tokenizer.bin"), 1)
ONNX = dict.fromkeys(("config.json", "onnx/model.onnx", "onnx/model_q4.onnx", "onnx/model_q4.onnx_data"), 500_000_000)
PAIR = {"a/embedllm.json": 1, "b/embedllm.json": 1, "ab/weights": 10**9}
ENCODERS = ("mmproj-m-BF16.gguf", "mmproj-m-F16.gguf", "q8/mmproj.gguf")
SEEING = dict.fromkeys((*ENCODERS, "imatrix.gguf", "m-Q4_0.gguf", *PARTS), 1)
PACKAGE = dict.fromkeys(("embedllm.json", "weights.safetensors", "tokenizer.json"), 10)


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("org/name", HubName("org/name")),
        ("org/name:*Q4_K_M.gguf", HubName("org/name", "*Q4_K_M.gguf")),
        ("org/name.v2-GGUF:int4/", HubName("org/name.v2-GGUF", "int4/")),
        ("demo", None),
        ("./org/name", None),
        ("../name", None),
        ("org/..", None),
        ("/org/name", None),
        ("a/b/c", None),
        ("~/name", None),
        ("C:/models", None),
        ("C:\\models", None),
        ("org/name:", None),
        ("models/tiny.gguf", None),
        ("org/" + "x" * 5000, HubName("org/" + "x" * 5000)),
        (Path("org/name"), None),
    ],
)
def test_a_name_of_the_hub_is_told_from_a_path(text: str | Path, means: HubName | None) -> None:
    assert hub_name(text) == means


def test_a_path_that_is_there_is_no_name_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org").mkdir()
    (tmp_path / "org" / "name").write_text("")
    monkeypatch.chdir(tmp_path)
    assert hub_name("org/name") is None
    assert hub_name("org/name:*") == HubName("org/name", "*")


@pytest.mark.parametrize(
    ("files", "pattern", "chosen"),
    [
        (PACKAGE | CHECKPOINT | GGUFS, "", Choice("package")),
        (CHECKPOINT | GGUFS, "", Choice("checkpoint")),
        ({"a/embedllm.json": 1, **GGUFS}, "", Choice("package", "a/")),
        ({"a/embedllm.json": 1, "b/embedllm.json": 1}, "b", Choice("package", "b/")),
        ({"a/embedllm.json": 1, "b/embedllm.json": 1}, "b/", Choice("package", "b/")),
        ({"a/embedllm.json": 1, "b/embedllm.json": 1}, "b/*", Choice("package", "b/")),
        (CHECKPOINT | GGUFS, "*Q4_K_M.gguf", Choice("gguf", files=("m-Q4_K_M.gguf",))),
        (GGUFS, "m-Q8_0*", Choice("gguf", files=PARTS)),
        (GGUFS, PARTS[0], Choice("gguf", files=PARTS)),
        (GGUFS | {"x-00001-of-00002.gguf": 1}, "*Q4_0*", Choice("gguf", files=("m-Q4_0.gguf",))),
        (GGUFS, "q8", Choice("gguf", files=PARTS)),
        (GENAI, "", Choice("external", "cpu/", ("cpu/genai_config.json", "cpu/tokenizer.json"))),
        (
            GENAI | {"gpu/genai_config.json": 1},
            "cpu",
            Choice("external", "cpu/", ("cpu/genai_config.json", "cpu/tokenizer.json")),
        ),
        (OPENVINO, "", Choice("external", "", ("config.json", "openvino_model.bin", "openvino_model.xml"))),
        (ONNX, "*_q4.onnx", Choice("external", "", ("config.json", "onnx/model_q4.onnx"), "onnx/model_q4.onnx")),
        (CHECKPOINT | ONNX | OPENVINO, "", Choice("checkpoint")),
        (SEEING, "*Q4*", Choice("gguf", files=("m-Q4_0.gguf",), mmproj="mmproj-m-F16.gguf")),
        (SEEING, "*Q4*,no-mmproj", Choice("gguf", files=("m-Q4_0.gguf",))),
        (
            SEEING,
            "*Q4*,*-BF16*",
            Choice("gguf", files=("m-Q4_0.gguf",), mmproj="mmproj-m-BF16.gguf", names_mmproj=True),
        ),
        (SEEING, "mmproj*,q8", Choice("gguf", files=PARTS, mmproj="mmproj-m-F16.gguf", names_mmproj=True)),
        (SEEING, "q8/", Choice("gguf", files=PARTS, mmproj="q8/mmproj.gguf")),
        (dict.fromkeys(("x/m.gguf", "mmproj.gguf"), 1), "", Choice("gguf", files=("x/m.gguf",), mmproj="mmproj.gguf")),
        (dict.fromkeys(("m.gguf", "x/mmproj.gguf"), 1), "", Choice("gguf", files=("m.gguf",))),
        (
            PACKAGE | {"m.gguf": 1, "mmproj.gguf": 1},
            "mmproj*",
            Choice("gguf", "", ("m.gguf",), "", "mmproj.gguf", True),
        ),
        (PACKAGE | CHECKPOINT | {"m.gguf": 1, "mmproj.gguf": 1}, "no-mmproj", Choice("gguf", files=("m.gguf",))),
        (dict.fromkeys(("m.gguf", "mmproj.gguf"), 1), "no-mmproj", Choice("gguf", files=("m.gguf",))),
    ],
)
def test_one_model_is_chosen(files: dict[str, int | None], pattern: str, chosen: Choice) -> None:
    assert choose(HubName("org/name", pattern), files) == chosen


@pytest.mark.parametrize(
    ("files", "pattern", "says"),
    [
        (GGUFS, "", "has 3 GGUF models; name one: 'org/name:m-Q4_0.gguf' (2.00 GB), 'org/name:m-Q4_K_M.gguf' (2.00 GB)"
         ", 'org/name:q8/m-Q8_0-00001-of-00003.gguf' (6.00 GB)."),
        (GGUFS, "*Q4*", "has 2 GGUF models"),
        (GGUFS, "*Q5_K_M.gguf", "no file of 'org/name' matches '*Q5_K_M.gguf'. Near it are: m-Q4_K_M.gguf"),
        (SEEING, "m-Q4*,mmproj-m-F16*,no-mmproj", "names a vision encoder and asks for none; leave out one of them."),
        (SEEING, "m-Q4*,mmproj-Q8*", "no file of 'org/name' matches 'mmproj-Q8*'. Near it are: "),
        (SEEING, "mmproj-m-F16.gguf", "has 2 GGUF models; name one: 'org/name:m-Q4_0.gguf' (0.00 GB), "),
        ({"zzz.txt": 1}, "*.gguf", "matches '*.gguf'. It has: zzz.txt."),
        (dict.fromkeys(PARTS[:2], 1), "", "is in 3 parts, of which 2 are there"),
        (PAIR, "", "has 2 packages; name one: 'org/name:a' (0.00 GB), 'org/name:b' (0.00 GB)."),
        (ONNX, "", "has 2 ONNX graphs; name one: 'org/name:onnx/model.onnx' (0.50 GB), 'org/name:onnx/model_q4.onnx' "),
        (GENAI | {"gpu/genai_config.json": 1}, "", "has 2 folders of onnxruntime-genai; name one: 'org/name:cpu' "),
        ({"config.json": 1, "pytorch_model.bin": 1}, "", "pytorch_model.bin (pickled weights are not read)."),
        ({"config.json": 1, "unet/model.safetensors": 1}, "", "found config.json, unet/model.safetensors."),
        ({}, "", "found no files."),
        (CHECKPOINT, "*.safetensors", "found model.safetensors."),
        ({f"{number}.txt": 1 for number in range(20)}, "", " and 8 more"),
    ],
)  # fmt: skip
def test_none_and_several_are_refused_with_what_there_is(files: dict[str, int | None], pattern: str, says: str) -> None:
    with pytest.raises(HubError) as caught:
        choose(HubName("org/name", pattern), files)
    assert says in str(caught.value)
