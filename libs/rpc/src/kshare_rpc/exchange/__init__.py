"""The persistent `Exchange` streams over which roles call each other: frames, the server's side, and their TLS."""
