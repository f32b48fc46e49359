"""Tables that are made from the message definitions of kio."""
