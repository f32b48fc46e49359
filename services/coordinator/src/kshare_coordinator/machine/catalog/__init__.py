"""Topics, configs, nodes, and the placement of partitions and state partitions."""
