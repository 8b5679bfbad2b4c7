"""From a recipe to a `lib.so`: the three pipelines, the launcher, `compile.sh`, `options.txt`."""

from tilusbuild.compile.device import DeviceCode, compile_device, nvrtc_tools
from tilusbuild.compile.model import Launch, Outcome, Pipeline, Prune, Recipe
from tilusbuild.compile.options import options_text
from tilusbuild.compile.program import (
    compile_program,
    launcher_folder,
    launcher_object,
    module_files,
)
from tilusbuild.state.objects import LauncherStore

__all__ = [
    "DeviceCode",
    "Launch",
    "LauncherStore",
    "Outcome",
    "Pipeline",
    "Prune",
    "Recipe",
    "compile_device",
    "compile_program",
    "launcher_folder",
    "launcher_object",
    "module_files",
    "nvrtc_tools",
    "options_text",
]
