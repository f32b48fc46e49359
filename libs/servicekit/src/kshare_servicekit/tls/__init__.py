"""TLS: of listeners for clients (`contexts`, from the stores in `material`) and between roles (`between_roles`)."""
