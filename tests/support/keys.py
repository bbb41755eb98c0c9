"""Key pairs that a test makes."""

import zmq

from chiplog_schemas.security.key_files import KeyPair
from chiplog_schemas.security.permissions import Role


def new_pair(role: Role = Role.AGENT, name: str = "node1") -> KeyPair:
    public, secret = zmq.curve_keypair()
    return KeyPair(name, str(role), public.decode(), secret.decode())
