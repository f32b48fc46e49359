"""The shell around the share-partition machine, with its I/O. Start at `service`."""
