"""Where training data come from: rollouts and demonstrations."""
