"""The HTTP/2 relay, pure: bytes in, bytes and events out."""
