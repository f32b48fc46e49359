"""Connections of clients: listeners, frames, order of responses, and limits on memory and elements."""
