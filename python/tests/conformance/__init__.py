"""What every driver has to pass: the same cases, with the same titles, as `src/testing/conformance` in TypeScript.

How to read a failure: fix the groups `driver interface: …` first, because the other groups are built on them. A number
in a title, such as `rule 7` or `failure 12`, refers to the safety documentation of Holdfast. A message `waited … s for
…` means that something that had to happen did not: a wake-up, a grant, the end of a lease.
"""
