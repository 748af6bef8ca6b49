"""HTTP: the OpenAI API on one port, everything for operators on another. The only room that knows either."""
