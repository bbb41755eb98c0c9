"""ZeroMQ sockets that speak the delivery protocol."""
