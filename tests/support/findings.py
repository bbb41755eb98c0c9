"""What the checks of `chiplog doctor` find in a directory."""

from pathlib import Path

from chiplog_cli.health_checks import Finding, run_checks
from chiplog_schemas.paths import paths_for_root


def findings(root: Path) -> dict[str, Finding]:
    """Return each check's finding by the name of the check."""
    return {finding.check: finding for finding in run_checks(paths_for_root(root))}
