"""Models and the Lightning modules that train them."""
