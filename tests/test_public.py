"""What is public: a change of it is made on purpose, and said in the changelog."""

import difflib

import public


def test_what_is_public_is_what_the_list_says():
    listed, found = public.FILE.read_text().splitlines(), [*public.lines()]
    changes = [*difflib.unified_diff(listed, found, "listed", "found", lineterm="", n=0)]
    said = "Is it meant? Run `python tests/public.py`, and write it into CHANGELOG.md:"
    assert not changes, "\n".join([said, *changes])
