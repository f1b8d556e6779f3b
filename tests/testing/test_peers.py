"""The kit on other packages' Functions: it runs to its end, whatever they get wrong, and ours pass everything."""

import pytest

from tests.testing.peers import PEERS, reports


@pytest.mark.peers
def test_the_table_can_be_made():
    """Each installed peer gets a report; ours fails nothing; a peer that has only ``backward`` passes plain reverse mode."""
    found = list(reports())
    assert {peer.package for peer, _, _ in found} >= {"fullgrad", "detach trick"}
    assert len(found) <= len(PEERS)
    for peer, _, report in found:
        if peer.package == "fullgrad":
            assert not report.failures
        assert report["backward"].status == "passed"
