"""Hostile input against a real kshare, with a good client beside it: `make test-hostile REQUESTS=1000000 SEED=1`.

- `kafka_messages` draws the bytes of a request field by field, from the message definitions of `kshare_wire`. A field
  may be what no client sends: an extreme number, a null, a length or a count that is untrue, an unknown tag.
- `hostile_batches` draws record batches for the fields that have records.
- `requests` puts a frame around a body and damages some: another version, cut off, too long, flipped bits.
- `senders` sends them over many connections and demands an answer or the end of the connection within a bound.
- `rpc_calls` does the same with the calls between roles, from the protos.
- `process_figures` watches memory and descriptors of the roles; `role_logs` finds lines that should not be there.
- `run` puts it together; `__main__` is the command.
- `corpus` has the frames that once failed; each run begins with them.
"""
