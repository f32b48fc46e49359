"""Decisions about ACLs, client quotas and SCRAM credentials, which are rows of the catalog."""
