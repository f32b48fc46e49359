"""Large values in files beside a store: each is written once."""
