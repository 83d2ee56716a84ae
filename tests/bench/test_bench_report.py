"""Tables as they are printed."""

from octavo.bench.report import Table, written


def test_columns_stand_under_their_heads():
    table = Table("Speed", ["what", "tokens/s"], [["one request", "7.5"], ["a batch", "1,234.5"]], "Higher is better.")
    assert written(table) == [
        "Speed",
        "what         tokens/s",
        "─────────────────────",
        "one request       7.5",
        "a batch       1,234.5",
        "Higher is better.",
    ]


def test_a_table_without_rows_or_note():
    assert written(Table("Nothing", ["a", "b"])) == ["Nothing", "a  b", "────"]
