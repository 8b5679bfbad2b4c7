"""From a recipe to a `lib.so`: the pipelines, the launcher, `compile.sh`, `options.txt`.

What compiles is `compile/program.py`; it is imported by who has something to compile, and not here.
"""

from tilusbuild.compile.model import Launch, Link, Pipeline, Prune, Recipe
from tilusbuild.compile.module import collect_module_files, format_options, lay_out_launcher

__all__ = [
    "Launch",
    "Link",
    "Pipeline",
    "Prune",
    "Recipe",
    "collect_module_files",
    "format_options",
    "lay_out_launcher",
]
