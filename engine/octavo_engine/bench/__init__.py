"""`octavo bench`: a load test of any server that speaks the OpenAI API. A client; it knows nothing of the engine."""
