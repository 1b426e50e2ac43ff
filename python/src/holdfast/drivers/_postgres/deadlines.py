"""How long the server may take, in seconds. Read at each use, so that a test can make them short."""

QUERY_SECONDS = 10.0
"""A half-open connection neither answers nor fails. After this time its statement fails, and the connection ends."""
SCRIPT_SECONDS = 120.0
"""For several statements at once, as in a migration."""
CONNECT_SECONDS = 5.0
CLOSE_SECONDS = 1.0
"""A server that does not answer does not confirm the end of a connection either."""
