"""The sample's model answers about the sample's pictures, and reads what its training wrote."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

import embedllm
from embedllm.cli.main import cli
from embedllm.images.processors import open_processor
from embedllm.package.package import open_package
from embedllm.text.chat_template import ChatTemplate
from embedllm.text.tokenizer import Tokenizer

FOLDER = Path(__file__).parents[2] / "samples" / "seeing"
MODEL, PICTURES = FOLDER / "model", FOLDER / "pictures"
QUESTIONS: list[list[str]] = json.loads((PICTURES / "questions.json").read_text(encoding="utf-8"))


def message(picture: Path, question: str) -> dict[str, object]:
    return {"role": "user", "content": [{"type": "image", "image": picture}, {"type": "text", "text": question}]}


@pytest.mark.parametrize("device", ["cpu", "openvino"])
def test_the_model_answers_about_each_picture(device: str) -> None:
    with embedllm.load(MODEL, device=device) as llm:
        for picture, question, answer in QUESTIONS:
            messages = [message(PICTURES / picture, question)]
            reply = llm.chat(messages, temperature=0, max_tokens=60)  # pyright: ignore[reportArgumentType] # images are no JSON
            assert reply.text == answer, f"{picture}: {question}"


def test_the_command_line_answers() -> None:
    arguments = ["run", str(MODEL), "What digit is this?", "--image", str(PICTURES / "digit.png"), "--device", "cpu"]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    assert result.stdout == "It is the digit 7.\n"


@pytest.mark.peer
def test_training_writes_prompts_and_pixels_as_the_library_does() -> None:
    torch = pytest.importorskip("torch")
    import tokenizers

    from tools.train_seeing_model.rendering import normalized
    from tools.train_seeing_model.text_format import Layout

    vision = open_package(MODEL).decoder.vision
    assert vision is not None
    tokenizer = Tokenizer.open(MODEL)
    processor = open_processor(MODEL, vision, tokenizer.named)
    layout = Layout(tokenizers.Tokenizer.from_file(str(MODEL / "tokenizer.json")))
    picture = Image.open(PICTURES / "shapes.png").convert("RGB").resize((128, 128))
    template = ChatTemplate.open(MODEL)
    for _, question, answer in QUESTIONS:
        messages = [{"role": "user", "content": f"<image>{question}"}]
        prompt = template.render(messages).replace(processor.placeholder, processor.prompt_text(*picture.size))  # pyright: ignore[reportArgumentType] # a list of plain dicts
        assert tokenizer.encode(prompt, special=True) == layout.prompt(question)
        assert tokenizer.encode(answer, special=False) == layout.encode(answer)
    pixels = normalized(torch.from_numpy(np.asarray(picture) / np.float32(255))).permute(2, 0, 1)
    assert np.abs(processor.pixel_values(picture)[0] - pixels.numpy()).max() < 1e-6
