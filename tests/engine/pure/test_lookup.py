"""What a sequence is expected to say next, held against the definition; and how far that is believed."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_engine.request import Constraint, Request
from octavo_engine.scheduling.drafts import SUREST, Drafter, Guess, _likeliest, worth
from octavo_engine.scheduling.lookup import LONG, SHORT, Lookup
from scheduling_helpers import request

TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=60)  # few different ones, so that they repeat


def expected(tokens: list[int], most: int) -> list[int]:
    """The definition: what came after the latest tokens when they last stood together; what repeats goes on."""
    for size in (LONG, SHORT):
        tail = tokens[-size:]
        for begin in range(len(tokens) - 1 - size, -1, -1):
            if len(tail) == size and tokens[begin : begin + size] == tail:
                known = list(tokens)
                for place in range(begin + size, begin + size + most):
                    known.append(known[place])
                return known[len(tokens) :]
    return []


class TestLookup:
    @given(TOKENS, st.integers(0, 20))
    def test_the_first_guess_is_as_defined(self, tokens: list[int], most: int):
        assert list(Lookup(tokens).guess(most)) == expected(tokens, most)

    @given(TOKENS, TOKENS)
    def test_a_guess_that_comes_true_goes_on_where_it_is(self, tokens: list[int], more: list[int]):
        """Found once, a place is followed for as long as it is right, and looked for anew when it is not."""
        lookup, known = Lookup(tokens), list(tokens)
        for token in more:
            guess = lookup.guess(5)
            lookup.learn([token])
            known.append(token)
            assert len(lookup) == len(known)
            if guess and guess[0] == token:
                assert lookup.guess(4) == guess[1:]
            else:
                assert list(lookup.guess(5)) == expected(known, 5)

    @given(TOKENS, TOKENS)
    def test_tokens_may_come_one_by_one_or_together(self, tokens: list[int], more: list[int]):
        one, all_at_once = Lookup(tokens), Lookup(tokens)
        for token in more:
            one.learn([token])
        all_at_once.learn(more)
        assert one.guess(9) == all_at_once.guess(9)
        assert one.trust == all_at_once.trust

    def test_a_period_goes_on_beyond_what_is_known(self):
        assert Lookup([1, 2, 3, 1, 2, 3, 1, 2]).guess(8) == (3, 1, 2, 3, 1, 2, 3, 1)

    def test_nothing_is_guessed_where_nothing_repeats(self):
        assert Lookup(range(100)).guess(5) == ()
        assert Lookup([7]).guess(5) == ()

    def test_it_is_believed_the_more_the_more_often_it_was_right(self):
        lookup = Lookup([1, 2, 1, 2])
        trusts = [lookup.trust]
        for _ in range(40):
            lookup.learn([1, 2])
            trusts.append(lookup.trust)
        assert trusts == sorted(trusts)
        assert trusts[-1] > 0.99
        lookup.learn([5])
        assert lookup.trust < trusts[-1]

    def test_any_token_that_a_model_may_have_is_one(self):
        edges = [0, 0xD800, 0xDFFF, 0xFFFF, 0x10000, sys.maxunicode]
        assert Lookup([*edges, *edges[:2]]).guess(3) == tuple(edges[2:5])


class TestWorth:
    @given(st.floats(0, 1), st.floats(0, 2))
    def test_just_those_that_are_likely_enough(self, trust: float, price: float):
        count, sure = worth(trust, price), min(trust, SUREST)
        assert count >= 0
        if count:
            assert sure**count > price * (1 - 1e-9)
        if price > 1e-6 and sure > 0:
            assert sure ** (count + 1) <= price * (1 + 1e-9)

    def test_what_is_never_right_is_worth_nothing(self):
        assert worth(0.0, 0.0) == worth(0.0, 0.5) == 0


class Forcing:
    """A form that leaves no choice about some tokens."""

    def __init__(self, *tokens: int) -> None:
        self._tokens = tokens

    def allowed(self, tokens: Sequence[int], first: int) -> bytes:
        raise AssertionError("who guesses asks what is forced, and nothing else")

    def forced(self, tokens: Sequence[int], first: int) -> Sequence[int]:
        return self._tokens

    def branch(self) -> Constraint:
        raise AssertionError("who guesses asks what is forced, and nothing else")


def draft(drafter: Drafter, item: Request, price: float, rows: int) -> tuple[int, ...]:
    (only,) = drafter.draft([item], price, rows)
    return only


class TestDrafter:
    def test_a_draft_leaves_the_answer_its_last_token(self):
        """A step gives one token more than it is right about."""
        item = request([1, 2] * 6, max_tokens=5)
        item.tokens += [1, 2]
        assert draft(Drafter(50, 1000), item, 0.01, 100) == (1, 2)
        assert draft(Drafter(50, 15), item, 0.01, 100) == ()
        assert draft(Drafter(50, 16), item, 0.01, 100) == (1,)

    def test_it_is_as_long_as_it_may_be(self):
        item = request([1, 2] * 6, max_tokens=500)
        assert len(draft(Drafter(7, 1000), item, 0.0, 100)) == 7
        assert len(draft(Drafter(7, 1000), item, 0.0, 3)) == 3

    @pytest.mark.parametrize("price", [0.5, 0.9, 3.0])
    def test_nothing_is_drafted_that_is_not_worth_its_price(self, price: float):
        assert draft(Drafter(7, 1000), request([1, 2] * 6, max_tokens=500), price, 100) == ()

    def test_of_too_many_the_likeliest_are_made(self):
        drafter, new, sure = Drafter(9, 1000), request([1, 2] * 6, max_tokens=90), request([3, 4] * 6, max_tokens=90)
        drafter.draft([new, sure], 0.01, 100)
        sure.tokens += [3, 4] * 20
        found = drafter.draft([new, sure], 0.01, 9)
        assert [len(guessed) for guessed in found] == [0, 9]
        assert [len(guessed) for guessed in drafter.draft([new, sure], 0.01, 11)] == [2, 9]

    @given(st.lists(st.floats(0.1, 1), min_size=1, max_size=6), st.integers(1, 20))
    def test_all_that_have_room_are_made(self, trusts: list[float], rows: int):
        guesses = [Guess((7,) * worth(trust, 0.05), 0, trust) for trust in trusts]
        chosen = _likeliest(guesses, rows)
        assert sum(len(guess.tokens) for guess in chosen) == min(rows, sum(len(guess.tokens) for guess in guesses))
        assert all(len(few.tokens) <= len(many.tokens) for few, many in zip(chosen, guesses, strict=True))

    def test_what_must_come_is_surer_than_what_repeats(self):
        doubtful, forced = Guess((1, 2, 3, 4, 5), 0, 0.9), Guess((1, 2, 3, 4, 5), 4, 0.2)
        assert [len(guess.tokens) for guess in _likeliest([doubtful, forced], 4)] == [0, 4]
        assert [len(guess.tokens) for guess in _likeliest([doubtful, forced], 9)] == [5, 4]

    def test_what_a_form_leaves_no_choice_about_is_guessed_however_little_repeats(self):
        item = request(list(range(20)), max_tokens=500, constraint=Forcing(40, 41, 42))
        assert draft(Drafter(7, 1000), item, 0.9, 100) == (40, 41, 42)
        assert draft(Drafter(2, 1000), item, 0.9, 100) == (40, 41)
        assert draft(Drafter(7, 1000), item, SUREST, 100) == ()
        assert draft(Drafter(7, 22), item, 0.9, 100) == (40,)

    def test_what_repeats_goes_on_after_what_must_come_if_they_agree(self):
        agreeing = request([1, 2, 3, 4, 5, 6] * 3, max_tokens=500, constraint=Forcing(1, 2, 3))
        assert draft(Drafter(9, 1000), agreeing, 0.3, 100) == (1, 2, 3, 4)
        other = request([1, 2, 3, 4, 5, 6] * 3, max_tokens=500, constraint=Forcing(1, 2, 9))
        assert draft(Drafter(9, 1000), other, 0.3, 100) == (1, 2, 9)

    def test_what_is_said_while_guesses_are_too_dear_is_learned_later(self):
        drafter, item = Drafter(7, 1000), request([1, 2] * 6, max_tokens=500)
        draft(drafter, item, 0.1, 100)
        item.tokens += [5, 6, 7] * 9
        assert draft(drafter, item, 1.0, 100) == ()
        assert draft(drafter, item, 0.1, 100)[:4] == (5, 6, 7, 5)

    def test_who_has_ended_is_forgotten(self):
        drafter, item = Drafter(7, 1000), request([1, 2] * 6)
        draft(drafter, item, 0.0, 100)
        drafter.forget(item)
        drafter.forget(item)
        assert not drafter._lookups
