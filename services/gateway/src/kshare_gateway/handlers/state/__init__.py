"""The inter-broker APIs of share-group state, keys 83 to 87."""
