"""From a template and a context to CUDA source, and from the source to the headers it can reach.

Importing this package does not import Jinja2, which takes longer than a build with nothing to do.
"""

import os


def find_templates_directory() -> str:
    """Return the directory of shipped templates: of the installed package, or the checkout."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    installed = os.path.join(package, "_templates")
    checkout = os.path.join(os.path.dirname(package), "templates")
    return installed if os.path.isdir(installed) else checkout
