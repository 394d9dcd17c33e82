"""Questions to models: base models of zones, and the adapters that jobs made."""
