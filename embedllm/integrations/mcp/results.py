"""What an MCP tool gives, as text for a model: text as it is, and what is no text by its type and size."""

from __future__ import annotations

import json
from collections.abc import Iterator

from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
)

from embedllm.text.lone_surrogates import replace_surrogates


def result_text(result: CallToolResult, max_chars: int) -> str:
    """The blocks of a result, one after the other; structured content where there is no text beside it.

    max_chars: what is longer is cut, and its end says so.
    """
    parts = [_block_text(block) for block in result.content]
    has_text = any(isinstance(block, TextContent) for block in result.content)
    if result.structured_content is not None and not has_text:  # else the text says the same, by the specification
        parts.insert(0, json.dumps(result.structured_content, ensure_ascii=False))
    return cut_text(replace_surrogates("\n".join(parts)), max_chars)


def cut_text(text: str, max_chars: int) -> str:
    """The text, or its beginning and a note."""
    if len(text) <= max_chars:
        return text
    return f"{text[:max_chars]}\n[cut: the first {max_chars} of {len(text)} characters]"


def _block_text(block: ContentBlock) -> str:
    if isinstance(block, TextContent):
        return block.text
    if isinstance(block, ImageContent | AudioContent):
        return f"[{block.type}: {block.mime_type}, {_data_bytes(block.data)} bytes; models here read text only]"
    if isinstance(block, ResourceLink):
        return f"[resource: {' '.join(_words_of(block))}]"
    return _resource_text(block)


def _words_of(link: ResourceLink) -> Iterator[str]:
    yield link.uri
    yield from (word for word in (link.name, link.mime_type, link.description) if word)


def _resource_text(block: EmbeddedResource) -> str:
    resource = block.resource
    if isinstance(resource, BlobResourceContents):
        kind = resource.mime_type or "bytes"
        return f"[resource: {resource.uri} {kind}, {_data_bytes(resource.blob)} bytes; models here read text only]"
    return f"[resource: {resource.uri}]\n{resource.text}"


def _data_bytes(base64: str) -> int:
    """How many bytes a Base64 text stands for."""
    return len(base64.rstrip("=")) * 3 // 4
