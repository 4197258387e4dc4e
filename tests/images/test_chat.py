"""Images in chats of a tiny model that sees, from the message to the reply."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import embedllm
from embedllm import Model
from embedllm.backends.images import FIRST_ID, images_of
from embedllm.errors import ContextFull, PackageError, TemplateError
from embedllm.export import Recipe, convert
from embedllm.images.processors import open_processor
from embedllm.images.settings import FILES
from embedllm.package.package import open_package
from embedllm.text.chat_template import Message
from tests.support.vision import IMAGE_TOKEN, TILE_TOKENS, CountedTiles, chat_checkpoint, gemma_chat_checkpoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("seeing")
    return convert(chat_checkpoint(root / "checkpoint"), root / "package", Recipe(bits=32))


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[Model]:
    with embedllm.load(folder, device="cpu", exact=True) as opened:
        yield opened


def picture(seed: int, width: int = 40, height: int = 40) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def url(image: Image.Image) -> str:
    return f"data:image/png;base64,{base64.b64encode(png(image)).decode()}"


def asked(*content: object) -> list[Message]:
    """One message; images as their parts, texts as text."""
    parts = [{"type": "text", "text": part} if isinstance(part, str) else part for part in content]
    return [{"role": "user", "content": parts}]  # pyright: ignore[reportReturnType] # images are no JSON


def test_the_prompt_has_a_token_for_each_row_of_features(llm: Model) -> None:
    request = llm.request(asked("what is ", {"type": "image", "image": picture(1)}, "?"))
    tokens = request.prompt
    marks = [llm.tokenizer.token_id(text) for text in ("<fake_token_around_image>", "<row_2_col_1>", "<global-img>")]
    assert [tokens.count(mark) for mark in marks] == [6, 1, 1]
    assert sum(token >= FIRST_ID for token in tokens) == request.images[0].tokens == 5 * TILE_TOKENS
    assert IMAGE_TOKEN not in tokens
    assert np.shape(request.images[0].pixel_values) == (5, 3, 32, 32)


@pytest.mark.parametrize("given", ["bytes", "path", "pillow", "array", "url", "openai"])
def test_an_image_may_come_in_any_form(llm: Model, tmp_path: Path, given: str) -> None:
    image = picture(2, 30, 20)
    (tmp_path / "a.png").write_bytes(png(image))
    forms: dict[str, object] = {
        "bytes": {"type": "image", "image": png(image)},
        "path": {"type": "image", "image": tmp_path / "a.png"},
        "pillow": {"type": "image", "image": image},
        "array": {"type": "image", "image": np.asarray(image)},
        "url": {"type": "image", "url": url(image)},
        "openai": {"type": "image_url", "image_url": {"url": url(image), "detail": "high"}},
    }
    expected = llm.request(asked({"type": "image", "image": image}, "a")).images[0]
    found = llm.request(asked(forms[given], "a")).images[0]
    assert found.tokens == expected.tokens
    assert np.array_equal(found.pixel_values, expected.pixel_values)


def test_a_chat_sees_the_image(llm: Model) -> None:
    """Of the reply only the image differs; the same image gives the same reply, and is encoded once."""
    encoded = CountedTiles(images_of(llm.runner.engine))
    (one,) = llm.request(asked({"type": "image", "image": picture(3)}, "a")).images
    replies = [llm.chat(asked({"type": "image", "image": picture(seed)}, "a"), temperature=0, max_tokens=12)
               for seed in (3, 4, 3)]  # fmt: skip
    assert replies[0].tokens == replies[2].tokens != replies[1].tokens
    assert encoded.count == 2 * len(one.pixel_values)


@pytest.mark.parametrize("device", ["cpu", "openvino", "reference"])
def test_a_chat_with_gemma_3_sees_images(tmp_path: Path, device: str) -> None:
    folder = convert(gemma_chat_checkpoint(tmp_path / "checkpoint"), tmp_path / "package", Recipe(bits=32))
    with embedllm.load(folder, device=device, exact=device != "reference") as llm:
        one, two = ({"type": "image", "image": picture(seed)} for seed in (1, 2))
        request = llm.request(asked("is ", one, " like ", two, "?"))
        start, end = (llm.tokenizer.token_id(text) for text in ("<start_of_image>", "<end_of_image>"))
        places = [place for place, token in enumerate(request.prompt) if token == start]
        assert [request.prompt[place + TILE_TOKENS + 1] for place in places] == [end, end]
        assert all(token >= FIRST_ID for place in places for token in request.prompt[place + 1 :][:TILE_TOKENS])
        assert [one.tokens for one in request.images] == [TILE_TOKENS, TILE_TOKENS]
        replies = [llm.chat(asked("is ", *pair, "?"), temperature=0, max_tokens=4).logprobs
                   for pair in ((one, two), (two, one), (one, two))]  # fmt: skip
    assert replies[2] == pytest.approx(replies[0], abs=1e-4)
    assert replies[1] != pytest.approx(replies[0], abs=1e-2)


def test_a_placeholder_in_a_text_is_only_text(llm: Model) -> None:
    said = asked("not <image> but ", {"type": "image", "image": picture(5)}, " and <row_1_col_1>")
    request = llm.request(said)
    assert request.images[0].tokens == sum(token >= FIRST_ID for token in request.prompt)
    assert "not <image> but " in llm.tokenizer.decode([t for t in request.prompt if t < FIRST_ID])


def test_a_text_reaches_a_template_that_takes_only_parts(llm: Model) -> None:
    assert llm.prompt([{"role": "user", "content": "hello"}]) == "<|im_start|>user: hello<|im_end|>\nAssistant:"


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"type": "image"}, r"messages\[0\]: a part of the type 'image' has 0 images"),
        ({"type": "image_url", "image_url": {"url": "https://a.b/c.png"}}, "embedllm downloads no images"),
        ({"type": "image_url", "image_url": "/etc/passwd"}, "expected a data URL.*pathlib.Path"),
        ({"type": "image", "image": "file:///etc/passwd"}, "embedllm downloads no images"),
        ({"type": "image", "url": "data:image/png;base64,AAA*"}, "not valid base64"),
        ({"type": "image", "url": "data:image/png,abc"}, "expected ';base64,' in it"),
        ({"type": "image", "image": b"no image"}, "cannot be read"),
        ({"type": "image", "image": 5}, "an image is a int"),
        ({"type": "image", "image": np.zeros((3, 40, 40), np.uint8)}, r"the shape \[3, 40, 40\]; expected \[height"),
        ({"type": "image", "image": np.full((4, 4, 3), 2.0)}, "values out of 0 to 1"),
        ({"type": "image", "image": np.zeros((4, 4, 3), np.int64)}, "an array of int64"),
        ({"type": "audio", "audio": "a"}, "a part of the type 'audio'"),
    ],
)
def test_what_is_no_image_is_named(llm: Model, part: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        llm.chat(asked("a", part))


def test_a_model_of_text_says_that_it_takes_none() -> None:
    with embedllm.load("demo", device="reference") as text:
        messages = asked("a", {"type": "image", "image": picture(1)})
        for call in (text.chat, text.prompt_tokens, lambda said: text.conversation().say(said[0])):
            with pytest.raises(ValueError, match="reads text only: it takes no images"):
                call(messages)


def test_images_that_exceed_the_context_are_refused_before_a_prompt_is_made(llm: Model) -> None:
    parts = [{"type": "image", "image": picture(6)}] * 300
    with pytest.raises(ContextFull, match="the 300 images of the prompt have 24000 tokens; 512 can be held"):
        llm.chat(asked(*parts))
    with pytest.raises(ValueError, match="more than 1000 images"):
        llm.chat(asked(*parts * 4))


def test_a_conversation_keeps_its_images_and_is_saved_with_them(llm: Model, tmp_path: Path) -> None:
    encoded = CountedTiles(images_of(llm.runner.engine))
    said = asked({"type": "image", "image": picture(7, 20, 20)}, "what?")[0]
    with llm.conversation() as talk:
        talk.say(said, temperature=0, max_tokens=4)
        assert json.loads(json.dumps(talk.messages[0])) == talk.messages[0]
        talk.save(tmp_path / "a.kv")
        expected = talk.say("and?", temperature=0, max_tokens=6)
    before = encoded.count
    with llm.open_conversation(tmp_path / "a.kv") as talk:
        found = talk.say("and?", temperature=0, max_tokens=6)
    assert found.tokens == expected.tokens
    assert found.statistics.cached_tokens > TILE_TOKENS
    assert encoded.count == before > 0


def test_a_second_turn_decodes_no_image(llm: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    with llm.conversation() as talk:
        talk.say(asked({"type": "image", "image": png(picture(8, 20, 20))}, "what?")[0], temperature=0, max_tokens=4)
        monkeypatch.setattr(Image.Image, "load", lambda _: pytest.fail("an image was decoded again"))
        talk.say("and?", temperature=0, max_tokens=4)


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("preprocessor_config.json", {"max_image_size": {"longest_edge": 48}}, "tiles of 48 pixels.* reads 32"),
        ("preprocessor_config.json", {"max_image_size": {"longest_edge": 0}}, "'max_image_size' is"),
        ("preprocessor_config.json", {"size": {"longest_edge": 10**9}}, "'size' is"),
        ("preprocessor_config.json", {"size": {"height": 32, "width": 32}}, "expected a 'longest_edge'"),
        ("preprocessor_config.json", {"do_resize": False}, "expected a 'longest_edge'"),
        ("preprocessor_config.json", {"image_std": [0, 1, 1]}, "'image_std' is"),
        ("preprocessor_config.json", {"image_mean": [0.5, 0.5]}, "expected 3 numbers"),
        ("preprocessor_config.json", {"resample": "cubic"}, "'resample' is 'cubic'"),
        ("preprocessor_config.json", {"do_image_splitting": 1}, "expected true or false"),
        ("processor_config.json", {"image_seq_len": 8}, "'image_seq_len' is 8.* makes 16 rows"),
        ("processor_config.json", {"processor_class": "OtherProcessor"}, "the image processor 'OtherProcessor'; known"),
        ("preprocessor_config.json", None, "no preprocessor_config.json"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    folder: Path, tmp_path: Path, file: str, change: dict[str, object] | None, words: str
) -> None:
    for name in FILES:
        values = json.loads((folder / name).read_text())
        if name != file or change is not None:
            (tmp_path / name).write_text(json.dumps({**values, **((change or {}) if name == file else {})}))
    vision = open_package(folder).decoder.vision
    assert vision is not None
    with pytest.raises(PackageError, match=words):
        open_processor(tmp_path, vision, {})


def test_a_template_without_placeholders_is_named(folder: Path) -> None:
    template = "{% for m in messages %}{% for part in m.content %}{{ part['text'] }}{% endfor %}{% endfor %}"
    with (
        embedllm.load(folder, device="reference", chat_template=template) as llm,
        pytest.raises(TemplateError, match="writes 0 placeholders '<image>' for 1 images"),
    ):
        llm.chat(asked({"type": "image", "image": picture(9)}), max_tokens=1)
