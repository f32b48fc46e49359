"""Hostile input against a real kshare, with a good client beside it: `make test-hostile REQUESTS=1000000 SEED=1`.

- `kafka_messages` draws the bytes of a request field by field, from the message definitions of `kshare_wire`. A field
  may be what no client sends: an extreme number, a null, a length or a count that is untrue, an unknown tag.
- `hostile_batches` draws record batches for the fields that have records.
- `requests` puts a frame around a body and damages some: another version, cut off, too long, flipped bits.
- `entrances` says where they go: to a plain listener, or to one with SASL as various clients.
- `senders` sends them over many connections and demands an answer or the end of the connection within a bound.
- `rpc_messages` and `rpc_senders` do the same with the calls between roles, from the protos.
- `process_figures` watches memory and descriptors of the roles; `role_logs` finds lines that should not be there, and
  those that must be: of each refused connection. `bounds` judges both.
- `run` puts it together; `__main__` is the command.
- `corpus` has the frames that once failed; each run begins with them, and makes a twentieth of its requests of them.
"""
