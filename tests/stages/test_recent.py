"""What was used of late stays, within its bytes."""

from omnistage.stages.recent import RecentValues


def test_the_longest_unused_goes_first_and_bytes_are_counted_once() -> None:
    """Fault: what is asked for often is dropped, a value that is put again counts twice, or the bound is passed."""
    recent: RecentValues[str, str] = RecentValues(10)
    recent.put("a", "1", 4)
    recent.put("b", "2", 4)
    recent.put("b", "3", 5)
    assert (recent.get("a"), recent.nbytes) == ("1", 9)
    recent.put("c", "4", 2)
    assert (recent.get("b"), recent.get("a"), recent.get("c")) == (None, "1", "4")
    recent.put("d", "5", 11)
    assert (len(recent), recent.nbytes, recent.get("d")) == (0, 0, None)
    recent.put("a", "1", 10)
    recent.clear()
    assert (len(recent), recent.nbytes) == (0, 0)
