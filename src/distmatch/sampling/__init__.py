"""Samplers: what draws completions from the policy."""
