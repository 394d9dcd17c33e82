"""Money: the double-entry ledger, wallets and holds."""
