"""Model sources: from an address to a directory that `octavo serve` reads. Loads no torch, knows no server.

`location` says where, `sources` lists and reads, `selection` chooses the files, `directory` keeps them, `transfer`
moves the bytes, `command` puts it together.
"""
