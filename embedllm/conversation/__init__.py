"""Conversations: turns over one KV cache, the policy when the context is full, saved files."""
