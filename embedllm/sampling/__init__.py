"""Logits to a token: penalties, truncation (top-k, top-p, min-p ...), Mirostat, DRY, bans."""
