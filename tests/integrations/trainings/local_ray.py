"""A Ray of two processors, for one training. It finds no network but loopback."""

import contextlib
import tempfile
from collections.abc import Iterator

import ray


@contextlib.contextmanager
def local_ray() -> Iterator[None]:
    """Start Ray, and end it with its processes and files."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:  # short: sockets are in it
        ray.init(num_cpus=2, include_dashboard=False, _temp_dir=directory)
        try:
            yield
        finally:
            ray.shutdown()


@contextlib.contextmanager
def two_nodes() -> Iterator[None]:
    """Start Ray as on two nodes of one processor each: they have addresses of their own, and share no parent."""
    from ray.cluster_utils import Cluster

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        head = {"num_cpus": 1, "node_ip_address": "127.0.0.1", "temp_dir": directory}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            cluster.add_node(num_cpus=1, node_ip_address="127.0.0.2")
            ray.init(address=cluster.address)
            yield
        finally:
            ray.shutdown()
            cluster.shutdown()
