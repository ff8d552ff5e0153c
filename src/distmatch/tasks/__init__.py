"""Tasks: instances, prompts, verifiers and references."""
