"""What watches and drives a run."""
