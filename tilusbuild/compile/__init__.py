"""From a recipe to a `lib.so`: the pipelines, the launcher, `compile.sh`, `options.txt`.

What compiles is `compile/program.py`; it is imported by who has something to compile, and not here.
"""

from tilusbuild.compile.model import Launch, Link, Pipeline, Prune, Recipe
from tilusbuild.compile.module import launcher_directory, module_files, options_text

__all__ = [
    "Launch",
    "Link",
    "Pipeline",
    "Prune",
    "Recipe",
    "launcher_directory",
    "module_files",
    "options_text",
]
