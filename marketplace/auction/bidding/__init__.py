"""From a request to a stored bid: terms, measured work, quotes, placing and waiting."""
