"""Authorized operations, as clients ask for them."""
