"""The NP-hard problems of NP-Bench, one file each."""
