"""An unknown name on the command line is bad input, with the nearest known names."""

import click
import pytest

from chiplog_cli.suggestions import require_known


def test_a_known_name_is_accepted_and_another_is_bad_input():
    require_known("label", "rank1", iter(["rank0", "rank1"]), "see all")
    with pytest.raises(click.UsageError, match=r"label 'rank7' is unknown; did you mean 'rank0' or 'rank1'\?"):
        require_known("label", "rank7", ["rank0", "rank1"], "see all")
