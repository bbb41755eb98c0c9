"""A Ray of two processors, for one training. It finds no network but loopback."""

import contextlib
import os
import tempfile
from collections.abc import Iterator

import ray


@contextlib.contextmanager
def local_ray() -> Iterator[None]:
    """Start Ray, and end it with its processes and files."""
    with _own_directory():
        ray.init(num_cpus=2, include_dashboard=False)
        try:
            yield
        finally:
            ray.shutdown()


@contextlib.contextmanager
def two_nodes() -> Iterator[None]:
    """Start Ray as on two nodes of one processor each: they have addresses of their own, and share no parent."""
    from ray.cluster_utils import Cluster

    with _own_directory():
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "node_ip_address": "127.0.0.1"})
        try:
            cluster.add_node(num_cpus=1, node_ip_address="127.0.0.2")
            ray.init(address=cluster.address)
            yield
        finally:
            ray.shutdown()
            cluster.shutdown()


@contextlib.contextmanager
def _own_directory() -> Iterator[None]:
    """Keep all files of Ray in a directory of this training: it has one file, of its address, for all of a machine."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:  # short: sockets are in it
        os.environ["RAY_TMPDIR"] = directory
        os.mkdir(os.path.join(directory, "ray"))
        yield
