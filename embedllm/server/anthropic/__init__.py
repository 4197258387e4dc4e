"""Anthropic's Messages: requests and replies in the forms of /v1/messages."""
