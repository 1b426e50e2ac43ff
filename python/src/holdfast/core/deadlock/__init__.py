"""The search for cycles of claims that wait for each other, of any process and language."""
