"""The APIs of classic and consumer groups, and of all groups."""
