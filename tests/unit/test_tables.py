"""Tables of texts in columns."""

from checkin_jax.cli.terminal import broken, columns

ROWS = [("view", "epsilon"), ("a long name", "1"), ("nothing is known",), ("b", "a | b")]


def test_columns_are_as_wide_as_their_widest_cell_and_lines_of_their_own_are_not_counted():
    assert columns(ROWS).splitlines() == [
        "view         epsilon",
        "a long name  1",
        "nothing is known",
        "b            a | b",
    ]
    assert columns(ROWS[:1], " ", (6,)) == "view   epsilon"


def test_a_last_column_that_is_too_wide_goes_on_below():
    rows = [("a", "told"), ("b", "one two three four five"), ("c", "")]
    assert columns(rows, width=22).splitlines() == ["a  told", "b  one two three four", "   five", "c"]
    assert columns(rows, width=12) == columns(rows)


def test_lines_break_between_words_and_go_on_below_their_text():
    text = "one two three\n  upper end  four five six seven\n  randomizer four five six\n  an indented line of words"
    assert broken(text, None) == text
    assert broken(text, 24).split("\n") == [
        "one two three",
        "  upper end  four five",
        "             six seven",
        "  randomizer four five",
        "             six",
        "  an indented line of",
        "  words",
    ]
