"""The catalog as clients see it: brokers, internal topics, cached parts of Metadata responses, and changes."""
