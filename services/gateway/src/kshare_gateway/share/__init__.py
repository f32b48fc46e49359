"""Share sessions, and ShareFetch and ShareAcknowledge across leaders."""
