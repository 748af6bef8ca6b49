"""How long prompts and answers are: fixed, uniform, or log-normal, which is what people's prompts look like. Pure."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Self

from octavo_engine.errors import InvalidConfiguration

LONGEST = 10_000_000
FORMS = "512, uniform:100-900, or lognormal:MEDIAN:SIGMA[:LONGEST] such as lognormal:400:0.8:4000"


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens, drawn anew for each: from `low` to `high`, evenly, or log-normal around `median` within them."""

    low: int
    high: int
    median: float | None = None
    sigma: float = 0.0  # of the logarithm: 0.8 puts one in six beyond 2.2 times the median

    @classmethod
    def parse(cls, text: str, flag: str) -> Self:
        """Read one of FORMS; raises InvalidConfiguration."""
        kind, _, rest = text.partition(":")
        try:
            match kind, rest:
                case "uniform", _:
                    low, _, high = rest.partition("-")
                    made = cls(int(low), int(high))
                case "lognormal", _:
                    median, sigma, *longest = rest.split(":")
                    made = cls(1, int(*longest) if longest else LONGEST, float(median), float(sigma))
                case number, "":
                    made = cls(int(number), int(number))
                case _:
                    raise ValueError(text)
        except (ValueError, TypeError) as error:
            raise InvalidConfiguration(f"{flag} is {text!r}; it must be like {FORMS}") from error
        if not made._sound:
            raise InvalidConfiguration(f"{flag} is {text!r}; lengths are from 1 to {LONGEST:,}, the lower one first")
        return made

    @property
    def _sound(self) -> bool:
        bounds = 1 <= self.low <= self.high <= LONGEST
        if self.median is None:
            return bounds
        return bounds and 1 <= self.median <= self.high and 0 <= self.sigma < math.inf

    def draw(self, rng: random.Random) -> int:
        """One length, in tokens."""
        if self.median is None:
            return rng.randint(self.low, self.high)
        drawn = rng.lognormvariate(math.log(self.median), self.sigma)
        return int(min(max(round(min(drawn, LONGEST)), self.low), self.high))

    def __str__(self) -> str:
        if self.median is not None:
            within = f", at most {self.high:,}" if self.high < LONGEST else ""
            return f"log-normal, median {self.median:g}, sigma {self.sigma:g}{within}"
        return f"{self.low:,}" if self.low == self.high else f"{self.low:,} to {self.high:,}"
