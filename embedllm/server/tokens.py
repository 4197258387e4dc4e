"""POST /tokenize and /detokenize: requests as vLLM and llama-server have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from embedllm.generation.run_in_thread import run_in_thread
from embedllm.openai.parameters import MESSAGE, TOOL
from embedllm.openai.schema import BOOLEAN, OBJECT, STRING, STRINGS, Body, array, integer, one_of
from embedllm.server.endpoint import Endpoint, Exchange
from embedllm.server.errors import ApiError, encode
from embedllm.server.replies import spelling

if TYPE_CHECKING:
    from embedllm.model.model import Model
    from embedllm.types import JSON

_TEXT = Body(
    name="TokenizeRequest",
    properties={
        "model": STRING,
        "prompt": STRING,
        "content": STRING,  # llama-server's name
        "messages": array(MESSAGE, 1),
        "tools": array(TOOL),
        "chat_template_kwargs": OBJECT,
        "add_special_tokens": BOOLEAN,
        "add_special": BOOLEAN,
        "return_token_strs": BOOLEAN,
        "with_pieces": BOOLEAN,
    },
)
_TOKENS = Body(name="DetokenizeRequest", required=("tokens",),
               properties={"model": STRING, "tokens": array(integer(0))})  # fmt: skip


async def tokenize(exchange: Exchange, body: Mapping[str, Any]) -> None:
    named = [name for name in ("prompt", "content", "messages") if name in body]
    if len(named) != 1:
        raise ApiError(400, f"found {' and '.join(named) or 'no text'}; expected one of prompt, content and messages.")
    async with exchange.context.pool.use(body.get("model")) as lease:
        model = lease.model
        reply_body = await run_in_thread(lambda cancel: _encode_tokens(model, body))
    await exchange.reply_bytes(reply_body, "application/json")


def _encode_tokens(model: Model, body: Mapping[str, Any]) -> bytes:
    tokens = _tokens(model, body)
    fields: dict[str, JSON] = {"tokens": [*tokens], "count": len(tokens), "max_model_len": model.context}
    if body.get("with_pieces"):
        fields["tokens"] = [{"id": token, "piece": spelling(model)(token)[0]} for token in tokens]
    if body.get("return_token_strs"):
        fields["token_strs"] = [spelling(model)(token)[0] for token in tokens]
    return encode(fields)


def _tokens(model: Model, body: Mapping[str, Any]) -> list[int]:
    if (messages := body.get("messages")) is not None:
        return model.prompt_tokens(messages, tools=body.get("tools") or None,
                                   variables=body.get("chat_template_kwargs"))  # fmt: skip
    # llama-server adds them when asked for, vLLM unless told otherwise
    special = body.get("add_special_tokens", True) if "prompt" in body else body.get("add_special", False)
    return list(model.tokenizer.encode(body.get("prompt", body.get("content", "")), special=special))


async def detokenize(exchange: Exchange, body: Mapping[str, Any]) -> None:
    async with exchange.context.pool.use(body.get("model")) as lease:
        size = lease.model.package.architecture.vocabulary
        if odd := [token for token in body["tokens"] if token >= size]:
            raise ApiError(400, f"there is no token {odd[0]}; the vocabulary has 0 to {size - 1}.", param="tokens")
        tokens: list[int] = body["tokens"]
        text = await run_in_thread(lambda cancel: lease.model.tokenizer.decode(tokens, special=True))
    await exchange.reply({"prompt": text, "content": text})  # vLLM's name and llama-server's


def endpoints() -> list[Endpoint]:
    """The rows of the route table."""
    count = {"tokens": array(one_of(integer(0), OBJECT)), "count": integer(0), "token_strs": STRINGS}
    return [
        Endpoint(path="/tokenize", handle=tokenize, summary="The token ids of a text or a conversation.", body=_TEXT,
                 response={**OBJECT, "properties": count}, tag="Tokens"),
        Endpoint(path="/detokenize", handle=detokenize, summary="The text of token ids.", body=_TOKENS,
                 response={**OBJECT, "properties": {"prompt": STRING, "content": STRING}}, tag="Tokens"),
    ]  # fmt: skip
