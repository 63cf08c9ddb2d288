"""Runs an S3 server until stdin ends, and prints the port of the server."""

import sys

from moto.server import ThreadedMotoServer

if __name__ == "__main__":
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    print("port", server.get_host_and_port()[1], flush=True)
    sys.stdin.read()  # until the test closes stdin
    server.stop()
