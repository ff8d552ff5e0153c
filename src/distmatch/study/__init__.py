"""Studies: what an objective does, measured exactly in the lab and side by side on tasks."""
