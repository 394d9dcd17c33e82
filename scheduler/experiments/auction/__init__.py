"""The auction's experiments (section 5 of the paper)."""
