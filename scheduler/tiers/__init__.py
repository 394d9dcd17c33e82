"""The two tiers (Allpass): pressure, scalers, break-even demotion. Pure functions."""
