"""The APIs of topics, configs, brokers and the cluster."""
