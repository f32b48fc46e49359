"""What the handlers of all kinds of groups share."""
