"""Topics that the catalog does not have, and whose records are stored: removed, or kept where the catalog is older."""
