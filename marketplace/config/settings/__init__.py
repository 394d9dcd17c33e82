"""One module per way of running; ``base`` holds what they share."""
