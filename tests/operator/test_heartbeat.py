"""The heartbeat: what watches told against what is listed; only silence about a change counts."""

import pytest

from octavo_operator.heartbeat import Heartbeat, Identity, Sight, Verdict
from octavo_operator.names import Key

ONE, TWO = Key("team", "one"), Key("team", "two")
POD = Identity("pods", "uid-1")
OTHER = Identity("services", "uid-2")
QUIET = Verdict()


@pytest.fixture
def heartbeat():
    made = Heartbeat()
    made.told(POD, Sight("5", ONE), gone=False)
    made.told(OTHER, Sight("6", TWO), gone=False)
    return made


LISTED = {POD: Sight("5", ONE), OTHER: Sight("6", TWO)}


def test_when_nothing_happens_nothing_is_missed(heartbeat):
    assert [heartbeat.compare(LISTED) for _ in range(3)] == [QUIET] * 3


def test_a_change_that_no_watch_tells_is_found_at_once_and_the_watch_called_dead_at_the_next_list(heartbeat):
    changed = LISTED | {POD: Sight("9", ONE)}
    assert heartbeat.compare(changed) == Verdict(missed=frozenset({ONE}))
    assert heartbeat.compare(changed) == Verdict(frozenset({ONE}), frozenset({"pods"}))


def test_an_event_on_its_way_is_no_silence(heartbeat):
    changed = LISTED | {POD: Sight("9", ONE)}
    heartbeat.compare(changed)
    heartbeat.told(POD, Sight("9", ONE), gone=False)
    assert heartbeat.compare(changed) == QUIET


def test_a_watch_that_is_ahead_of_the_list_or_far_behind_but_moving_is_alive(heartbeat):
    for version in ("7", "8", "9"):
        heartbeat.told(POD, Sight(version, ONE), gone=False)
        assert heartbeat.compare(LISTED).silent == frozenset()


def test_objects_made_and_deleted_unseen_are_found(heartbeat):
    made = Identity("pods", "uid-3")
    listed = {POD: LISTED[POD], made: Sight("9", TWO)}
    assert heartbeat.compare(listed).missed == {TWO}
    assert heartbeat.compare(listed).silent == {"pods", "services"}


def test_a_deletion_that_was_told_is_forgotten(heartbeat):
    heartbeat.told(OTHER, Sight("8", TWO), gone=True)
    assert heartbeat.compare({POD: LISTED[POD]}) == QUIET


def test_watches_that_begin_anew_have_a_round_to_tell_everything(heartbeat):
    heartbeat.compare(LISTED | {POD: Sight("9", ONE)})
    heartbeat.restarted()
    assert heartbeat.compare(LISTED).silent == frozenset()
    assert heartbeat.compare(LISTED).silent == {"pods", "services"}


def test_an_object_of_nobody_shows_a_dead_watch_but_causes_no_work(heartbeat):
    listed = LISTED | {Identity("pods", "uid-4"): Sight("1", None)}
    assert heartbeat.compare(listed) == QUIET
    assert heartbeat.compare(listed) == Verdict(silent=frozenset({"pods"}))
