"""Taking an adapter away: merged weights and GGUF files made by nodes, and pushes to a hub."""
