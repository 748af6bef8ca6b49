"""`octavo bench` beside vLLM's load client and guidellm, on one server and on the wire: do they agree?"""
