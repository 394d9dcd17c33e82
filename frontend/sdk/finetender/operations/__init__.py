"""Everything that can be asked of the market, each once for both clients."""
