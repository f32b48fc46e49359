"""Share-partitions served: the shell around the machine. Start at `service`."""
