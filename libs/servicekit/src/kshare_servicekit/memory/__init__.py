"""A process's memory: what it may use (`limit`), the sizes of its caches (`budget`), and its watch (`giving_back`)."""
