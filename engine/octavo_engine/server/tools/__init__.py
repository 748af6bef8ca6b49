"""What a model's text says: the part that is thought, the part that is said, and the tools that are called."""

from octavo_engine.server.tools.formats import Formats
from octavo_engine.server.tools.message import CallPart, Said
from octavo_engine.server.tools.reader import MessageReader, Reading

__all__ = ["CallPart", "Formats", "MessageReader", "Reading", "Said"]
