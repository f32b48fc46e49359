"""All types of groups; see the package of the machine."""
