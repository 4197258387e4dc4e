"""OpenAI's client over a loaded model: the same calls and the same shapes, without a server.

from embedllm.openai import OpenAI

client = OpenAI(embedllm.load("demo"))
reply = client.chat.completions.create(messages=[{"role": "user", "content": "list files"}])
print(reply.choices[0].message.content)
"""

from embedllm.openai.client import AsyncOpenAI as AsyncOpenAI
from embedllm.openai.client import OpenAI as OpenAI
