"""Charts are their tables."""

from chiplog.integrations.wandb import charts


def test_a_chart_keeps_its_table() -> None:
    table = object()
    made = [
        charts.plot_table("spec", table, {}, {}),
        charts.line(table, "x", "y"),
        charts.scatter(table, "x", "y"),
        charts.bar(table, "x", "y"),
        charts.histogram(table, "x"),
    ]
    assert all(chart.table is table and not chart.is_split for chart in made)
    assert charts.line(table, split_table=True).is_split
