"""Train your own network in your own loop with a loss that learns beside it."""
