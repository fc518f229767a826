"""Text from elsewhere stays text: in Markdown, in CSV, in HTML."""

import csv
import io
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.data import cifar10
from monitor.errors import UserError
from monitor.report.page import Page, Printed, Section, html, markdown
from monitor.results.table import Table, cell, escape, paragraph, printed
from trainer.registry import DATA


def page_of(*items):
    return Page("t", [], [Section("s", items)])


@pytest.mark.parametrize(
    "line", ["```", "`" * 9, "~~~", "a\n```\n# owned", "a\r# owned", "\x0b# owned", "\u2028# owned"]
)
def test_printed_lines_never_leave_their_block(line):
    text = markdown(page_of("message", Printed(["before", line, "after"])), "p")
    fence, *inside, end = text.split("\n\n")[3].rstrip().split("\n")
    assert fence == end and set(fence) == {"`"} and len(inside) == 3
    assert not any(fence in part for part in inside) and "\r" not in text


@given(st.lists(st.text()))
def test_a_block_ends_where_it_ends(lines):
    fence, *inside, end = printed(lines).split("\n")
    assert fence == end and len(inside) == len(lines) and not any(fence in part for part in inside)


@pytest.mark.parametrize("text", ["# a", "- a", "+ a", "1. a", "12) a", "~~~", "---", "=== a", "```", "* a", "> a"])
def test_a_paragraph_is_nothing_else(text):
    assert paragraph(text).lstrip("0123456789").startswith(("\\", "&gt;"))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[a](javascript:b)", "\\[a\\](javascript:b)"),
        ("![a](http://e/x.png)", "!\\[a\\](http\\://e/x.png)"),
        ("see http://evil.example", "see http\\://evil.example"),
        ("HTTPS://e and ftp://e", "HTTPS\\://e and ftp\\://e"),
        ("www.evil.example WWW.e.f", "www\\.evil.example WWW\\.e.f"),
        ("$\\color{red}{90 %}$", "\\$\\\\color{red}{90 %}\\$"),
        ("&lt;b&gt; &#x202e;", "&amp;lt;b&amp;gt; &amp;#x202e;"),
        ("a & b", "a &amp; b"),
        ("10:30, a:b, 3.5", "10:30, a:b, 3.5"),
    ],
)
def test_no_text_is_a_link_a_formula_or_another_letter_in_markdown(text, shown):
    assert escape(text) == shown


def test_an_ordinary_paragraph_stays_as_it_is():
    for text in ("Warning: ddp cnn3, 2 nodes.", "0 of 7", "3.5 s", "a - b"):
        assert paragraph(text).replace("\\", "") == text


FORMULAS = ["=1+1", "+cmd|' /C calc'!A0", "-2+3+cmd", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "a\r=1", "  =1", "\t1"]
AFTER_SPACES = [" \t=1", "\u3000=1", "\xa0=1", "\ufeff=1", "\u200b=1", "\xad=1", "\u2028=1", "\u2060@x"]
WIDE = ["＝1", "＋1+cmd", "－1x", "＠x", " ＝1"]


@pytest.mark.parametrize("text", [*FORMULAS, *AFTER_SPACES, *WIDE])
def test_a_cell_of_a_csv_is_no_formula(text):
    rows = list(csv.reader(io.StringIO(Table("t", "t", ["a", text], [[text, 1.5], ["-", -2]]).csv(), newline="")))
    field = text.replace("\r", "\n") if text.startswith("a") else "'" + text.replace("\r", "\n")
    assert rows == [["a", field], [field, "1.5"], ["-", "-2"]]


@pytest.mark.parametrize("value", ["", "-", "-1.5", "+3%", "a=b", "ddp", -1, 1.5, None])
def test_other_cells_stay_as_they_are(value):
    assert cell(value) == value


@pytest.mark.parametrize("text", ["<script>", '" onload="x', "'><img src=x>", "&lt;b&gt;"])
def test_nothing_is_markup_in_html(text):
    whole = html(Page(text, [text], [Section(text, [text, Printed([text]), Table("t", text, [text], [[text]])])]))
    assert text not in whole


def nested(depth):
    value = 0
    for _ in range(depth):
        value = [value] * 10
    return value


@pytest.mark.parametrize(
    "label", [nested(28), "x" * 10**6, 10**4000, {"a": nested(20)}], ids=["list", "text", "int", "dict"]
)
def test_a_label_of_any_kind_is_refused_in_a_short_line(tmp_path, label):
    batch = cifar10._unpickle(
        pickle.dumps({"data": np.zeros((1, 3072), "u1"), "labels": [label]}, protocol=2), tmp_path / "b"
    )
    with pytest.raises(UserError, match=r"label of type .*would do") as error:
        cifar10._batch(batch, DATA["cifar10"], tmp_path / "b")
    assert len(str(error.value)) < 300


@pytest.mark.parametrize(
    ("to", "says"),
    [
        ("/dev/zero", "batches.meta is a device; only a plain file is read"),
        ("elsewhere", r"batches.meta: cannot be read \(No such file"),
        ("../secret", "batches.meta: truncated or corrupted"),  # the user's own link: read as what it should be
    ],
)
def test_a_batch_is_a_plain_file_or_a_link_to_one(tmp_path, to, says):
    folder = tmp_path / "d"
    folder.mkdir()
    (tmp_path / "secret").touch()
    for name in ("batches.meta", "data_batch_1", "test_batch"):
        (folder / name).symlink_to(to)
    with pytest.raises(UserError, match=says):
        cifar10.prepare(DATA["cifar10"], seed=1, data_dir=folder, cache=tmp_path / "c", say=print)
