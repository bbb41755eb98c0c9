"""ZeroMQ sockets that run the delivery protocol."""
