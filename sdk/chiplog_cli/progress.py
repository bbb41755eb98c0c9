"""A progress bar on a terminal. What it names, a run or a file, is shown as text: rich would read `[/x]` as markup."""

from typing import TYPE_CHECKING

from chiplog_cli.tables.format_values import printable

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn


def progress_bar(*columns: "ProgressColumn") -> "Progress":
    """Build a bar on standard error that disappears at the end; it draws nothing if that is not a terminal.

    columns: after the description and the bar.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, Task
    from rich.text import Text

    class Description(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(printable(task.description))  # safeguard: progress-shows-no-markup

    console = Console(stderr=True)
    return Progress(
        Description(), BarColumn(), *columns, console=console, transient=True, disable=not console.is_terminal
    )
