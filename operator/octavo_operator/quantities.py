"""Kubernetes' quantities ("1500m", "2Gi") as numbers."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

_SUFFIXES = {"m": Decimal("0.001"), "k": Decimal(10**3), "": Decimal(1)}
_SUFFIXES |= {letter: Decimal(1000) ** power for power, letter in enumerate("MGTPE", start=2)}
_SUFFIXES |= {f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", start=1)}


def amount(text: str) -> Decimal | None:
    """The number that a quantity stands for; None when it is none."""
    number = text.rstrip("mkMGTPEKi")
    try:
        return Decimal(number) * _SUFFIXES[text[len(number) :]]
    except (InvalidOperation, KeyError):
        return None
