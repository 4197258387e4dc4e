"""Structured output: JSON schema, regex, choices and Lark grammars, compiled by llguidance to logits masks."""
