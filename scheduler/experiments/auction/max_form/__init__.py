"""The max form of prices (eqs. 7-8, 12): its policies and its exact search."""
