"""Held-out metrics: success, quality, pass@k and diversity of a policy's answers."""
