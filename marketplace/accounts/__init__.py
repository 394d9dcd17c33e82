"""Who may act: people, organisations and API keys."""
