"""Packing: writes a stream of records once to shards with random access.

``inputs`` opens the files of the source, ``records`` parses them to Arrow tables, ``shard_writer``
cuts them into shards, and ``pack`` continues where an interrupted process ended.
"""
