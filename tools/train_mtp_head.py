"""Trains a multi-token prediction head (MTP) for a checkpoint that has none. Needs torch and transformers.

    python tools/train_mtp_head.py CHECKPOINT OUT --text TRAIN.jsonl --text CHATS.jsonl --held-out TEST.jsonl
    embedllm mtp PACKAGE OUT
    embedllm run PACKAGE --draft PACKAGE/mtp --speculate draft "..."

CHECKPOINT: of the family Qwen 3, whose layers the head's one is like. Texts: JSON lines with "text", or with
"messages", which pass the chat template. OUT: config.json and the head's tensors, under the names that `embedllm mtp`
reads.

The head begins as the model's last layer behind an fc that passes hidden states on, and learns the model's own
distribution of the token behind the next one; then, from its own hidden states, of the one behind that. On a GPU
(--device cuda) four minutes are a few passes over a megabyte of text.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

LENGTH = 256  # tokens of a window
SECOND = 0.5  # weight of the second guess in the loss
WARM_UP = 0.05  # of the time


class Head(nn.Module):
    """The head, beside a model whose embedding and output matrix it reads."""

    def __init__(self, model: transformers.PreTrainedModel) -> None:
        super().__init__()
        config, hidden = model.config, model.config.hidden_size
        one = type(config)(**{**config.to_dict(), "num_hidden_layers": 1, "layer_types": ["full_attention"]})
        self.decoder = transformers.AutoModel.from_config(one, dtype=torch.float32)
        self.decoder.layers[0].load_state_dict(model.model.layers[-1].state_dict())
        self.decoder.norm.load_state_dict(model.model.norm.state_dict())
        self.decoder.embed_tokens = None
        self.embedding_norm, self.hidden_norm = (nn.RMSNorm(hidden, eps=config.rms_norm_eps) for _ in range(2))
        self.fc = nn.Linear(2 * hidden, hidden, bias=False)
        with torch.no_grad():
            self.fc.weight.copy_(torch.cat([torch.zeros(hidden, hidden), torch.eye(hidden)], dim=1))

    def forward(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        """What the output matrix reads, [B, T, D]: of the tokens behind `embedded`, which follow those of `hidden`."""
        both = torch.cat([self.embedding_norm(embedded), self.hidden_norm(hidden)], dim=-1)
        return self.decoder(inputs_embeds=self.fc(both), use_cache=False).last_hidden_state

    def tensors(self) -> dict[str, Tensor]:
        """Under the names of Qwen 3.5's checkpoints."""
        layer = {f"mtp.layers.0.{name}": value for name, value in self.decoder.layers[0].state_dict().items()}
        others = {"mtp.fc.weight": self.fc.weight, "mtp.norm.weight": self.decoder.norm.weight,
                  "mtp.pre_fc_norm_embedding.weight": self.embedding_norm.weight,
                  "mtp.pre_fc_norm_hidden.weight": self.hidden_norm.weight}  # fmt: skip
        return {name: value.detach().cpu().half().contiguous() for name, value in {**layer, **others}.items()}


def windows(paths: list[Path], tokenizer: transformers.PreTrainedTokenizerBase) -> Tensor:
    """All texts behind each other, in windows of LENGTH tokens."""
    tokens: list[int] = []
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            text = entry.get("text") or tokenizer.apply_chat_template(entry["messages"], tokenize=False)
            assert isinstance(text, str)  # as tokenize=False says
            tokens += [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
    count = len(tokens) // LENGTH
    return torch.tensor(tokens[: count * LENGTH]).reshape(count, LENGTH)


def batches(data: Tensor, size: int, seed: int) -> Iterator[Tensor]:
    """Without an end."""
    order, chooser = list(range(len(data))), random.Random(seed)
    while True:
        chooser.shuffle(order)
        yield from (data[order[at : at + size]] for at in range(0, len(order) - size + 1, size))


def guesses(model: transformers.PreTrainedModel, head: Head, ids: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The logits of the head's first and second guess, and those of the model for the same tokens."""
    with torch.no_grad():
        hidden = model.model(ids).last_hidden_state
        wanted, embedded = model.lm_head(hidden), model.get_input_embeddings()(ids)
    first = head(embedded[:, 1:], hidden[:, :-1])
    second = head(embedded[:, 2:], first[:, :-1])
    return [(model.lm_head(first), wanted[:, 1:]), (model.lm_head(second), wanted[:, 2:])]


def divergence(found: Tensor, wanted: Tensor) -> Tensor:
    return functional.kl_div(found.float().log_softmax(-1).flatten(0, 1), wanted.float().log_softmax(-1).flatten(0, 1),
                             log_target=True, reduction="batchmean")  # fmt: skip


@torch.no_grad()
def agreement(model: transformers.PreTrainedModel, head: Head, data: Tensor, device: str) -> list[float]:
    """How often each guess is the token that the model holds most likely."""
    right = [0.0, 0.0]
    for ids in data:
        for place, (found, wanted) in enumerate(guesses(model, head, ids[None].to(device))):
            right[place] += float((found.argmax(-1) == wanted.argmax(-1)).float().mean()) / len(data)
    return right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--text", type=Path, action="append", required=True)
    parser.add_argument("--held-out", type=Path, action="append", default=[])
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--batch", type=int, default=16, help="windows")
    parser.add_argument("--rate", type=float, default=5e-4)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.checkpoint)
    model = transformers.AutoModelForCausalLM.from_pretrained(options.checkpoint, dtype=torch.float32)
    model = model.to(options.device).eval().requires_grad_(False)
    head = Head(model).to(options.device)
    data, held_out = windows(options.text, tokenizer), windows(options.held_out, tokenizer)[:64]
    print(f"{data.numel():,} tokens; right before: {agreement(model, head, held_out, options.device)}", flush=True)
    optimizer = torch.optim.AdamW(head.parameters(), lr=options.rate, weight_decay=0.01)
    began_s, budget_s = time.monotonic(), 60 * options.minutes
    for step, ids in enumerate(batches(data, options.batch, options.seed)):
        share = (time.monotonic() - began_s) / budget_s
        if share >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = options.rate * min(share / WARM_UP + 0.01, 1.0) * (1 - share)
        with torch.autocast(options.device, dtype=torch.bfloat16, enabled=options.device == "cuda"):
            (first, second) = guesses(model, head, ids.to(options.device))
            loss = divergence(*first) + SECOND * divergence(*second)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step}, {share:.0%} of the time: loss {loss.item():.3f}", flush=True)
    print(f"right: {agreement(model, head, held_out, options.device)}", flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    shutil.copy(options.checkpoint / "config.json", options.out / "config.json")
    save_file(head.tensors(), options.out / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main()
