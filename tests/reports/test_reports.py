"""Public bug reports do here what the table of lessons/REPORTS.md says."""

import pytest
from make_table import KINDS, TABLE, page
from replay import REPORTS, row
from tiers import mostly_slow

ROWS = [
    line for line in TABLE.read_text("utf-8").splitlines() if line.startswith("| [")
]
RECORDED = {
    report[-1].__name__: (report, line)
    for report, line in zip(REPORTS, ROWS, strict=True)
}


@pytest.mark.parametrize("replay", mostly_slow(RECORDED, [*RECORDED][::3]))
@pytest.mark.filterwarnings("ignore:Detected call of")
def test_a_report_replays_as_it_is_recorded(replay):
    report, recorded = RECORDED[replay]
    assert row(*report) == recorded


def test_the_page_counts_its_rows():
    assert page(ROWS) == TABLE.read_text("utf-8")
    assert len({source for source, *_ in REPORTS}) == len(ROWS) >= 40
    assert {replay.__module__ for *_, replay in REPORTS} == {k.__name__ for k in KINDS}
