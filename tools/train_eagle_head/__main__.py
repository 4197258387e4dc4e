"""Trains an EAGLE-3 head for a checkpoint on the model's own replies. Needs torch, transformers and safetensors.

    python tools/train_eagle_head CHECKPOINT CORPUS OUT --package PACKAGE --device cuda --minutes 9
    embedllm eagle PACKAGE OUT
    embedllm run PACKAGE --draft PACKAGE/eagle --speculate draft "..."

CHECKPOINT: of a family whose layers transformers has under model.model.layers. CORPUS: a folder with
chat_validation.jsonl, fresh_slots.jsonl, tldr_pairs.jsonl ("messages", or "description", "tool" and "command") and
validation.jsonl ("text"). PACKAGE: the export that the head shall draft for; its rounded matrices take the place of
the checkpoint's. OUT: config.json and model.safetensors in the layout of published heads.

For a model that was trained on more than the corpus: with --general, prompts of nine kinds are made from templates
besides, and with --own, the model draws what users ask it, half of it behind an opening of such a kind (Xu et al. 2024,
arXiv:2406.08464, "Magpie"). A part of the time goes into replies, greedy and sampled. With --rounded, the last half of
the training computes with matrices of four bits, as a package stores them. The head's vocabulary is what occurs most
often in replies. It learns the model's distribution over it for several guesses in a row; every twentieth entry of the
corpus is held out, and says how often each guess is right.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import torch
import transformers
from head import Head, Size
from own import own_prompts
from prompts import HELD_OUT, Prompts, plain
from replies import Reply, all_replies, batches, in_groups, padded, prompt_groups, replies_to
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

_LATER = 0.8  # weight of each guess in the loss, of that of the one before
_WARM_UP = 0.03  # of the time
_MOST_HELD_OUT = 768  # replies
_ROUNDED_FROM = 0.5  # of the time
_OF_SPREAD = 64  # replies
_MEASURED = Path(__file__).parents[2] / "tests" / "benchmarks" / "speculation_prompts.jsonl"


def put_rounded(model: transformers.PreTrainedModel, folder: Path) -> None:
    """Gives a model the matrices of a package."""
    from embedllm.package.package import open_package
    from embedllm.package.packing import Packed, dequantize, packings
    from embedllm.package.tensors import linears

    package = open_package(folder)
    stored, packing = load_file(package.weights), packings(package.manifest)
    matrices = [linear for layer in package.decoder.layers for linear in linears(layer)]
    matrices += [package.decoder.embedding, *([] if package.decoder.tied else [package.decoder.head])]
    rounded: dict[str, Tensor] = {}
    for linear in matrices:
        weight, scale, zero, minimum = (
            stored[name].numpy() if (name := f"{linear.name}.{part}") in stored else None
            for part in ("weight", "scale", "zero", "minimum")
        )
        assert weight is not None, linear.name
        if packing[linear.name].quantized:
            assert scale is not None, linear.name
            weight = dequantize(Packed(weight, scale, zero, minimum), packing[linear.name], linear.columns)
        rounded[f"{linear.source}.weight"] = torch.from_numpy(weight).float()
    loaded = model.load_state_dict(rounded, strict=False)
    assert not loaded.unexpected_keys, loaded.unexpected_keys


@torch.no_grad()
def read_by_model(
    model: transformers.PreTrainedModel, ids: Tensor, layers: Sequence[int], tokens: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of ids [B, T]: what a head reads, of T - 1 places, and what it shall guess there.

    Embeddings of the tokens from the second on; features of those from the first on; the model's logits of the head's
    tokens for the token behind both; and whether the likeliest of all tokens is among them.
    """
    found = model.model(ids, output_hidden_states=True)
    features = torch.cat([found.hidden_states[layer] for layer in layers], dim=-1)[:, :-1]
    logits = model.lm_head(found.last_hidden_state[:, 1:])
    likeliest = logits.argmax(-1)
    known = torch.isin(likeliest, tokens)
    return model.get_input_embeddings()(ids[:, 1:]).float(), features.float(), logits[..., tokens].float(), known


@torch.no_grad()
def feature_spread(model: transformers.PreTrainedModel, replies: Sequence[Reply], layers: Sequence[int]) -> Tensor:
    """The root of the mean square of each feature that a head reads."""
    ids, spans = padded(replies[:: max(1, len(replies) // _OF_SPREAD)])
    found = model.model(ids.to(model.device), output_hidden_states=True).hidden_states
    place = torch.arange(ids.shape[1])
    # what begins a text draws the attention of all that follow, and has features a thousand times those of others
    counted = ((place > 0) & (place < spans[:, 1:])).to(model.device)
    return torch.cat([found[layer][counted] for layer in layers], dim=-1).float().square().mean(0).sqrt()


def guessed_places(ids: Tensor, spans: Tensor) -> Tensor:
    """[B, T - 1]: whether the token behind both that a head reads at a place is one of the reply."""
    token = torch.arange(2, ids.shape[1] + 1, device=ids.device)
    return (token >= spans[:, :1]) & (token < spans[:, 1:])


def loss_of(made: Sequence[Tensor], wanted: Tensor, places: Tensor) -> Tensor:
    """The weighted cross-entropy of all guesses."""
    target, total = wanted.softmax(-1), torch.zeros((), device=wanted.device)
    for number, logits in enumerate(made):
        counted = places.clone()
        counted[:, :number] = False
        each = -(target * logits.float().log_softmax(-1)).sum(-1)
        total = total + _LATER**number * (each * counted).sum() / counted.sum().clamp(min=1)
    return total


@torch.no_grad()
def acceptance(
    model: transformers.PreTrainedModel, head: Head, replies: Sequence[Reply], guesses: int
) -> dict[str, list[float]]:
    """By kind of prompt: how often each guess of a chain is right, when all before it are, in greedy replies."""
    reached: dict[str, list[int]] = defaultdict(lambda: [0] * (guesses + 1))
    head.eval()
    for group in in_groups(replies, 16):
        ids, spans = (each.to(model.device) for each in padded(group))
        embedded, features, _, _ = read_by_model(model, ids, head.size.layers, head.tokens)
        places, truth = guessed_places(ids, spans), token_behind(ids)
        made = head.unrolled(embedded, features, guesses)
        right = [((head.tokens[logits.argmax(-1)] == truth) & places).cpu() for logits in made]
        for row, reply in enumerate(group):
            for start in places[row].cpu().nonzero()[:, 0].tolist():
                for kind in (reply.kind, "all"):
                    reached[kind][0] += 1
                for number in range(guesses):
                    at = start + number
                    if at >= right[number].shape[1] or not right[number][row, at]:
                        break
                    for kind in (reply.kind, "all"):
                        reached[kind][number + 1] += 1
    head.train()
    return {kind: [b / max(1, a) for a, b in itertools.pairwise(counts)] for kind, counts in sorted(reached.items())}


def token_behind(ids: Tensor) -> Tensor:
    """[B, T - 1]: the token behind both that a head reads at a place; none behind the last."""
    return nn.functional.pad(ids[:, 2:], (0, 1), value=-1)


def said(found: dict[str, list[float]]) -> str:
    def accepted(shares: Sequence[float]) -> float:
        return sum(itertools.accumulate(shares, lambda a, b: a * b))

    return "\n".join(
        f"  {kind:16s} right, when all before are: {', '.join(f'{share:.3f}' for share in shares)}; "
        f"{accepted(shares):.2f} of {len(shares)} guesses accepted"
        for kind, shares in found.items()
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--package", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--minutes", type=float, default=9.0, help="of replies and training together")
    parser.add_argument("--reply-share", type=float, default=0.5, help="of the minutes, for replies")
    parser.add_argument("--dtype", default="float32", choices=("float32", "float16", "bfloat16"), help="of the model")
    parser.add_argument("--general", type=int, default=0, help="prompts that are made from templates")
    parser.add_argument("--own", type=int, default=0, help="prompts that the model draws itself, at most")
    parser.add_argument("--rounded", action="store_true", help="train for matrices of four bits")
    parser.add_argument("--resume", type=Path, help="a head of the same shape that is trained further")
    parser.add_argument("--measured", type=Path, default=_MEASURED, help="prompts of a benchmark, which are left out")
    parser.add_argument(
        "--cached-tokens", type=int, default=400_000, help="of prompts and replies that are made at once"
    )
    parser.add_argument("--new-tokens", type=int, default=160, help="of a reply, at most")
    parser.add_argument("--batch-tokens", type=int, default=24576, help="tokens of a step of training")
    parser.add_argument("--prompts", type=int, default=0, help="at most, for a trial; 0: all")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--guesses", type=int, default=4, help="in a row, that are trained")
    parser.add_argument(
        "--layers", type=int, nargs="+", default=[2, 5, 9], help="before the hidden states that are read"
    )
    parser.add_argument("--vocabulary", type=int, default=2048)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--intermediate", type=int, default=1024)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def frequent(replies: Sequence[Reply], count: int, vocabulary: int) -> Tensor:
    """The tokens that occur most often in replies, ascending; where there are too few, those of the lowest ids too."""
    seen = Counter(token for reply in replies for token in reply.tokens[reply.start :])
    best = [token for token, _ in seen.most_common(count)]
    best += [token for token in range(vocabulary) if token not in seen][: count - len(best)]
    covered = sum(seen[token] for token in best) / max(1, seen.total())
    print(f"{len(seen):,} different tokens in {seen.total():,}; the head knows {covered:.2%} of them", flush=True)
    return torch.tensor(sorted(best))


def train(
    model: transformers.PreTrainedModel,
    head: Head,
    replies: Sequence[Reply],
    options: argparse.Namespace,
    minutes: float,
) -> None:
    optimizer = torch.optim.AdamW(head.parameters(), lr=options.rate, betas=(0.9, 0.95), weight_decay=0.01)
    began_s = time.monotonic()
    for step, (ids, spans) in enumerate(batches(replies, options.batch_tokens, seed=options.seed)):
        share = (time.monotonic() - began_s) / (60 * minutes)
        if share >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = options.rate * min(share / _WARM_UP + 0.01, 1.0) * (1 - share)
        if options.rounded and share >= _ROUNDED_FROM:
            head.round_matrices()
        ids, spans = ids.to(options.device), spans.to(options.device)
        embedded, features, wanted, known = read_by_model(model, ids, options.layers, head.tokens)
        with torch.autocast(options.device, dtype=torch.bfloat16, enabled=options.device == "cuda"):
            made = head.unrolled(embedded, features, options.guesses)
        loss = loss_of(made, wanted, guessed_places(ids, spans) & known)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}, {share:.0%} of the time: loss {loss.item():.3f}", flush=True)


def main() -> None:
    options = arguments()
    torch.manual_seed(options.seed)
    torch.set_float32_matmul_precision("high")
    torch.backends.cuda.enable_cudnn_sdp(False)  # it plans again for each length, which is each step of a reply
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.checkpoint)
    model = transformers.AutoModelForCausalLM.from_pretrained(options.checkpoint, dtype=torch.float32)
    if options.package is not None:
        put_rounded(model, options.package)
    model = model.to(options.device, getattr(torch, options.dtype)).eval().requires_grad_(False)
    measured = [
        json.loads(line)["messages"][-1]["content"] for line in options.measured.read_text("utf-8").splitlines()
    ]
    prompts = Prompts(options.corpus, tokenizer, seed=options.seed, general=options.general, measured=measured)
    trained, held_out = prompts.trained, prompts.held_out
    ends = (tokenizer.eos_token_id, tokenizer.pad_token_id)  # a tokenizer of a GGUF file may have no padding
    stop, began_s = [token for token in ends if token is not None], time.monotonic()
    if options.own:
        own = own_prompts(model, tokenizer, options.own, stop=stop, measured={plain(text) for text in measured},
                          seed=options.seed)  # fmt: skip
        print(f"{len(own):,} own prompts after {time.monotonic() - began_s:.0f} s", flush=True)
        held_out += own[::HELD_OUT]
        trained += [prompt for number, prompt in enumerate(own) if number % HELD_OUT]
    print(
        f"{len(trained):,} prompts and {len(held_out):,} held out: {Counter(each.kind for each in trained)}", flush=True
    )
    step = max(1, len(held_out) // min(_MOST_HELD_OUT, options.prompts or _MOST_HELD_OUT))
    kept = sorted(held_out[::step], key=lambda prompt: len(prompt.tokens))
    if options.prompts:
        trained = trained[:: max(1, len(trained) // options.prompts)]
    how = {"stop": stop, "most": options.new_tokens}
    groups = prompt_groups(kept, options.cached_tokens, options.new_tokens)
    checked = [reply for group in groups for reply in replies_to(model, group, temperature=0.0, **how)]
    left = options.minutes * options.reply_share - (time.monotonic() - began_s) / 60
    replies = all_replies(model, trained, cached_tokens=options.cached_tokens, seed=options.seed, minutes=left, **how)
    before = None if options.resume is None else load_file(options.resume / "model.safetensors")
    if before is None:
        tokens = frequent(replies, options.vocabulary, model.config.vocab_size)
    else:
        tokens = before["d2t"] + torch.arange(len(before["d2t"]))
    size = Size(layers=tuple(options.layers), vocabulary=options.vocabulary, heads=options.heads,
                kv_heads=options.kv_heads, head_dim=options.head_dim, intermediate=options.intermediate)  # fmt: skip
    head = Head(model, size, tokens, feature_spread(model, replies, options.layers)).to(options.device)
    if before is not None:
        head.take(before)
    print(f"{sum(each.numel() for each in head.parameters()):,} weights", flush=True)
    train(model, head, replies, options, options.minutes * (1 - options.reply_share))
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "config.json").write_text(json.dumps(head.config(model.config), indent=1), encoding="utf-8")
    save_file(head.tensors(model.config.vocab_size), options.out / "model.safetensors", metadata={"format": "pt"})
    print(f"held out, {len(checked):,} replies:\n{said(acceptance(model, head, checked, options.guesses))}", flush=True)


if __name__ == "__main__":
    main()
