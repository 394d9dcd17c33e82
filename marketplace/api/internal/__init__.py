"""What GPU nodes talk to."""
