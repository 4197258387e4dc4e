"""Writes what train.py reads: sprites, the tokenizer, and all of the checkpoint but its weights.

python -m tools.train_seeing_model.prepare OUT FONT.ttf... HELD_OUT_FONT.ttf=test...
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from random import Random

import numpy as np

from tools.train_seeing_model import sprites
from tools.train_seeing_model.model import Sizes
from tools.train_seeing_model.questions import SYSTEM, turns, without_picture
from tools.train_seeing_model.scenes import SIDE, Composer, Fonts, Split
from tools.train_seeing_model.text_format import FAKE, GLOBAL, IMAGE, SPECIAL, TEMPLATE, TILE_TOKENS, make_tokenizer

_CARD = "---\nlicense: apache-2.0\n---\n\n# seeing\n\nThe model of embedllm's samples/seeing.\n"
_SCENES = 20_000  # enough to say every sentence


def sentences(fonts: Fonts) -> list[str]:
    """Questions and answers, and the names of the roles."""
    random = Random(0)
    composer = Composer(fonts, Split(fonts.trained), random)
    said = [one for _ in range(_SCENES) for one in turns(composer.scene(), random)]
    said += [without_picture(random) for _ in range(1000)]
    capital = [text for one in said for text in (one.question, one.answer) if text[0].isupper()]
    return ["User:", "Assistant:", "System:", *SYSTEM, *sorted(set(capital))]


def checkpoint_files(vocabulary: int) -> dict[str, object]:
    names = {"eos_token": SPECIAL[2], "bos_token": SPECIAL[1], "pad_token": SPECIAL[0], "image_token": SPECIAL[IMAGE],
             "fake_image_token": SPECIAL[FAKE], "global_image_token": SPECIAL[GLOBAL]}  # fmt: skip
    pixels = {"size": {"longest_edge": SIDE}, "max_image_size": {"longest_edge": SIDE}, "do_image_splitting": False,
              "do_resize": True, "resample": 2, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True,
              "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "do_pad": True, "do_convert_rgb": True}  # fmt: skip
    return {
        "config.json": Sizes(vocabulary=vocabulary).config(),
        "tokenizer_config.json": {**names, "tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE,
                                  "clean_up_tokenization_spaces": False, "model_max_length": 512},
        "preprocessor_config.json": {"image_processor_type": "Idefics3ImageProcessor",
                                     "processor_class": "Idefics3Processor", **pixels},
        "processor_config.json": {"processor_class": "Idefics3Processor", "image_seq_len": TILE_TOKENS},
        "generation_config.json": {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "do_sample": False},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("fonts", nargs="+")
    options = parser.parse_args()
    out: Path = options.out
    (out / "checkpoint").mkdir(parents=True, exist_ok=True)
    np.savez_compressed(out / "sprites.npz", allow_pickle=False, **sprites.make(options.fonts))
    tokenizer = make_tokenizer(sentences(Fonts(out / "sprites.npz")))
    tokenizer.save(str(out / "checkpoint" / "tokenizer.json"))
    vocabulary = tokenizer.get_vocab_size()
    for name, value in checkpoint_files(vocabulary).items():
        (out / "checkpoint" / name).write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    (out / "checkpoint" / "README.md").write_text(_CARD, encoding="utf-8")
    (out / "sizes.json").write_text(json.dumps(dataclasses.asdict(Sizes(vocabulary=vocabulary))), encoding="utf-8")
    print(f"{vocabulary} tokens")


if __name__ == "__main__":
    main()
