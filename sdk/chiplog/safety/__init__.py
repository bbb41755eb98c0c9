"""Protect the training from chiplog: bad input, exceptions, secrets."""
