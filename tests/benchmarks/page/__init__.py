"""`make bench-report`: the samples of runs as one HTML page. `__main__` puts it together, `plots` draws."""
