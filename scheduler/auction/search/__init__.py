"""The cells on sale, and the search for one task's cheapest schedule."""
