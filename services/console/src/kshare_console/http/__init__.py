"""The console's HTTP server: routes, sessions and guards, live streams, and the static page."""
