"""Answers of a given form: JSON of a schema, a regular expression, one of some choices, a grammar.

`opening` < `spec`, `vocabulary` and `branching` < `matching`, `thought`, `watching` (one answer on its way) < `grammar`
< `rehearsal` (of one, where it can be killed: `trials`) and `kept` < `forms`, which the server asks. Only this package
knows the grammar engine, llguidance; the sampler, and who guesses what comes next, see a `Constraint` (in `request`).
"""

from octavo_engine.structured.forms import Forms
from octavo_engine.structured.grammar import Grammar
from octavo_engine.structured.opening import Mark, Openings, Start
from octavo_engine.structured.spec import Kind, Spec
from octavo_engine.structured.thought import Thought, thought_between

__all__ = ["Forms", "Grammar", "Kind", "Mark", "Openings", "Spec", "Start", "Thought", "thought_between"]
