"""What this optional room brings; see `tilusbuild/rooms.py`."""

BRINGS = {"report": {"html": "tilusbuild.page.html:make_page"}}
