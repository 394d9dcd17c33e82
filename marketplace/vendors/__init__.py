"""Labour vendors: who prepares data, for what, and what they delivered."""
