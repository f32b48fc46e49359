"""HTTP/2 on the event loop: the frames of gRPC streams, and the connection that carries them."""
