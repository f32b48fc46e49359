"""The APIs of transactions and producer ids."""
