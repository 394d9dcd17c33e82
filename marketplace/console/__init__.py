"""The provider's and the operator's pages."""
