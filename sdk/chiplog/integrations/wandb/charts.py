"""`wandb.plot.*` and `plot_table`: the table of a chart is stored; charts themselves are drawn by W&B's page only."""

from typing import Any


class CustomChart:
    """A chart that was made of a table. `log({"key": chart})` stores the table under `key_table`."""

    def __init__(self, table: Any, *, is_split: bool = False) -> None:
        self.table = table
        self.is_split = is_split


def plot_table(
    vega_spec_name: str,
    data_table: Any,
    fields: Any = None,
    string_fields: Any = None,
    split_table: bool = False,
) -> CustomChart:
    """Return a chart of a table, by W&B's arguments. The name and the fields are not used."""
    return CustomChart(data_table, is_split=split_table)


def line(
    table: Any, x: str = "", y: str = "", stroke: Any = None, title: str = "", split_table: bool = False
) -> CustomChart:
    """Return a chart of two columns of a table."""
    return CustomChart(table, is_split=split_table)


def scatter(table: Any, x: str = "", y: str = "", title: str = "", split_table: bool = False) -> CustomChart:
    """Return a chart of two columns of a table."""
    return CustomChart(table, is_split=split_table)


def bar(table: Any, label: str = "", value: str = "", title: str = "", split_table: bool = False) -> CustomChart:
    """Return a chart of two columns of a table."""
    return CustomChart(table, is_split=split_table)


def histogram(table: Any, value: str = "", title: str = "", split_table: bool = False) -> CustomChart:
    """Return a chart of one column of a table."""
    return CustomChart(table, is_split=split_table)
