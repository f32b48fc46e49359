"""Producers of a log (KIP-98): sequences and epochs, transactions, and appends of one turn that check them."""
