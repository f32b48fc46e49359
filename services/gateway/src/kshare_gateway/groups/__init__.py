"""Code shared by the handlers of all types of groups."""
