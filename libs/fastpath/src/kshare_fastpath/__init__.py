"""Speed tricks: what replaces plain behaviour of asyncio, of the C library or of Python for speed alone.

Each can be switched off (`switches`), is measured by `make bench-fastpath`, and says what breaks if it is wrong. With
all switches off everything works as with them, more slowly; tests run both ways.

- `prompt_future`: a listener that runs when a Future is done, not in the next turn of the event loop.
- `memory`: large buffers stay on the heap, and full garbage collections are rare.

The frames of the streams between roles are another one; they belong to `kshare_rpc.http2.frames`.
"""
