"""What comes from outside gives a terminal no orders."""

import io
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table

from monitor import console
from monitor.console import PlainConsole, plain

ORDERS = ["\x1b]0;TITLE\x07", "\x1b[2J", "\x1b[31mred", "\x1b]52;c;Y3Vy\x1b\\", "\x9b2J", "\x90q", "a\x7f",
          "\u202eevil", "\u2066x\u2069", "\r over", "\b\b"]  # fmt: skip


@given(st.text())
def test_no_order_is_left(text):
    shown = plain(text)
    assert all(unicodedata.category(c) != "Cc" or c in "\t\n" for c in shown)
    assert not set(shown) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f")
    assert plain(shown) == shown


@pytest.mark.parametrize("text", ["rank 0", "a\tb\nc", "größe 8×8 — 日本", "[bold]x[/]"])
def test_ordinary_text_is_shown_as_it_is(text):
    assert plain(text) == text


@pytest.mark.parametrize("order", ORDERS)
def test_a_console_shows_no_orders_but_its_own(order):
    stream = io.StringIO()
    screen = PlainConsole(file=stream, markup=False, emoji=False, width=200)
    table = Table(order)
    table.add_row(order)
    screen.print(f"warning: {order}", highlight=False)
    screen.print(table)
    assert all(unicodedata.category(c) not in ("Cc", "Cf") or c == "\n" for c in stream.getvalue())


def test_a_console_keeps_its_own_styles():
    stream = io.StringIO()
    screen = PlainConsole(file=stream, force_terminal=True, color_system="standard", width=80)
    screen.print("x\x1b[2J", style="red", highlight=False, markup=False)
    assert stream.getvalue() == "\x1b[31mx\\x1b[2J\x1b[0m\n"


@pytest.mark.parametrize("order", ORDERS)
def test_plain_lines_hold_no_orders(capsys, order):
    console.say(order)
    console.tell_removed([order], False, "")
    out, err = capsys.readouterr()
    assert (out, err) == (f"removed {plain(order)}\n", f"{plain(order)}\n")
