"""The files of the project that a walk changes, as a value, and the edits that are drawn for it.

Sources are small, so that a compile takes a fraction of a second: kernels for the host and, where
NVRTC is there, one for a GPU; a library; headers of few names in several directories, so that one
shadows another, and included in every way that there is.
"""

import copy
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

DIRECTORIES = ("include", "other", "kernels")
HEADERS = ("a.h", "b.h", "deep/c.h", "sysexits.h", "pick1.h", "pick2.h")
"""One has the name of a header of the system's; macros make the names of the last three."""
SCRIPTS = ("scale", "add", "norm", "blend")
_MACROS = "#define STR(x) #x\n#define XSTR(x) STR(x)\n"
_FORMS = (
    '#include "{name}"\n',
    "#include <{name}>\n",
    '#if __has_include("{name}")\n#include "{name}"\n#endif\n',
    "#if __has_include(<{name}>)\n#include <{name}>\n#endif\n",
    '#define CONFIG "{name}"\n#include CONFIG\n#undef CONFIG\n',
)
_MADE = (
    "#if __has_include(XSTR(PICK.h))\n#include XSTR(PICK.h)\n#endif\n",
    "#define SYS sysexits\n#include XSTR(SYS.h)\n",
    "#define JOIN(a, b) a##b\n#define WHICH JOIN(pick, 1)\n#include XSTR(WHICH.h)\n",
)
_BODY = """\
extern "C" {{ kind }} void kernel(float a, const float *x, float *y, long long n) {
  const int u = number + {{ unroll }};
  for (long long i = 0; i < n; ++i) y[i] = a * x[i] * u / u;
}
"""
_REFERENCE = "import numpy as np\n\n\ndef scale(a, x, y):\n    return np.float32(a) * x\n"


def _value_of(name: str) -> str:
    return "V_" + "".join(c if c.isalnum() else "_" for c in name)


_SEEN = "".join(
    f"#ifdef {value}\nstatic const int of_{value} = {value};\n#endif\n"
    for value in map(_value_of, HEADERS)
)


@dataclass
class Template:
    """What a template is rendered from."""

    number: int = 1
    includes: list[str] = field(default_factory=list)
    note: str = ""
    part: bool = False
    fails_at: int = 0
    """The schedule that has an #error; 9 is a mistake of C++, 8 one of Jinja2."""

    def text(self) -> str:
        lines = [f"{{# {self.note} #}}\n" if self.note else "", _MACROS]
        lines += ['{% set kind = "" if target.kind == "cpu" else "__global__" %}\n']
        lines += ['{% include "kernels/part.j2" %}\n'] if self.part else []
        lines += self.includes
        if self.fails_at == 9:
            lines.append("int wrong = ;\n")
        elif self.fails_at == 8:
            lines.append("{{ unknown }}\n")
        elif self.fails_at:
            lines.append(
                f"{{% if unroll == {self.fails_at} %}}\n#error not this one\n{{% endif %}}\n"
            )
        lines.append(f"static const int number = {self.number};\n")
        return "".join(lines) + _SEEN + _BODY


@dataclass
class Script:
    """The keys of a script."""

    template: str
    unroll: list[int]
    target: str = "cpu"
    more: dict[str, Any] = field(default_factory=dict)

    def table(self, name: str) -> str:
        keys = {"template": f"kernels/{self.template}.cu.j2", "kernel": "kernel", **self.more}
        text = "".join(f"{key} = {_toml(value)}\n" for key, value in keys.items())
        return (
            f'[script.{name}]\n{text}targets = ["{self.target}"]\n'
            'args = { a = "f32", x = "f32*[n]", y = { type = "f32*[n]", out = true }, n = "i64" }\n'
            f"space.unroll = {self.unroll}\nlaunch = {{ grid = [1], block = [1] }}\n"
            'tune = { ref = "ref.py:scale", sizes = [{ n = 64 }] }\n'
        )


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value)


@dataclass
class Sources:
    """All of the project."""

    templates: dict[str, Template]
    scripts: dict[str, Script]
    files: dict[str, str]
    """Headers, parts and plain sources, by path."""
    build: dict[str, Any]
    toolchain: dict[str, Any]
    library: dict[str, Any] | None
    mistake: str = ""
    """A line that the manifest should not have."""

    def texts(self) -> dict[str, str]:
        """Every file by its path."""
        text_by_path = {f"kernels/{name}.cu.j2": it.text() for name, it in self.templates.items()}
        return {**text_by_path, **self.files, "tilus.toml": self._manifest(), "ref.py": _REFERENCE}

    def key(self) -> str:
        """A name for what the files are."""
        return hashlib.sha256(repr(sorted(self.texts().items())).encode()).hexdigest()

    def _manifest(self) -> str:
        lines = ['edition = 1\nproject = { name = "p", version = "1" }\n']
        lines += [f"{self.mistake}\n"] if self.mistake else []
        for name in ("build", "toolchain"):
            keys = "".join(f"{key} = {_toml(v)}\n" for key, v in getattr(self, name).items())
            lines.append(f"[{name}]\n{keys}")
        lines.append('[target.cpu]\narch = "cpu"\n[target.gpu]\narch = "sm_80"\n')
        lines += [script.table(name) for name, script in self.scripts.items()]
        if self.library is not None:
            keys = "".join(f"{key} = {_toml(v)}\n" for key, v in self.library.items())
            lines.append(f"[library.lib]\n{keys}")
        return "".join(lines)

    def copy(self) -> "Sources":
        return copy.deepcopy(self)


def first(gpu: str) -> Sources:
    """What a walk begins with; `gpu` is the device compiler, or "" for none."""
    header = {name: header_text(name, number) for number, name in enumerate(HEADERS)}
    files = {f"include/{name}": header[name] for name in HEADERS if name != "pick2.h"}
    files |= {
        "other/keep": "",
        # A macro that climbs may go through any directory, so that one more compiles again.
        "out/keep": "",
        "kernels/part.j2": "// a part\nstatic const int part = 1;\n",
        "src/one.cpp": '#include "a.h"\nint one() { return V_a_h; }\n',
        "src/two.cpp": "int one();\nint two() { return 2 * one(); }\n",
    }
    templates = {name: Template() for name in ("scale", "add")}
    templates["scale"].includes = [_FORMS[0].format(name="a.h")]
    templates["add"].includes = [_MADE[0]]
    scripts = {"scale": Script("scale", [1, 2]), "add": Script("add", [1])}
    if gpu:
        templates["dev"] = Template(includes=[_FORMS[0].format(name="b.h")])
        scripts["dev"] = Script("dev", [1], "gpu", {"device-compiler": gpu})
    build = {
        "cache-dir": ".cache",
        "include-dirs": ["include", "other"],
        "defines": {"PICK": "pick1"},
    }
    library = {"sources": ["src/*.cpp"], "targets": ["cpu"], "output": "out/lib.so"}
    return Sources(templates, scripts, files, build, {}, library)


LINK = "link to "
"""The beginning of the text of a file that is a symbolic link to another one of the project."""


def header_text(name: str, number: int, includes: str = "") -> str:
    value = _value_of(name)
    return f"#pragma once\n{includes}#undef {value}\n#define {value} {number:03}\n"


def _headers(sources: Sources) -> list[str]:
    return sorted(name for name in sources.files if name.endswith(".h"))


def _any_header(chance: Random) -> str:
    return f"{chance.choice(DIRECTORIES)}/{chance.choice(HEADERS)}"


# The edits: each changes the sources as `chance` says, or not.


def edit_number(sources: Sources, chance: Random) -> None:
    name = chance.choice(sorted(sources.templates))
    sources.templates[name].number = chance.randrange(1, 4)


def edit_note(sources: Sources, chance: Random) -> None:
    name = chance.choice(sorted(sources.templates))
    sources.templates[name].note = chance.choice(["", "a note", "another", "of two\n lines"])


def edit_include(sources: Sources, chance: Random) -> None:
    includes = sources.templates[chance.choice(sorted(sources.templates))].includes
    if includes and chance.random() < 0.5:
        includes.pop(chance.randrange(len(includes)))
    elif len(includes) < 3:
        form = chance.choice(_FORMS).format(name=chance.choice(HEADERS))
        form = chance.choice(_MADE) if chance.random() < 0.4 else form
        if form not in includes:
            includes.insert(chance.randrange(len(includes) + 1), form)


def edit_part(sources: Sources, chance: Random) -> None:
    template = sources.templates[chance.choice(sorted(sources.templates))]
    if chance.random() < 0.5:
        template.part = not template.part
    elif chance.random() < 0.8:
        sources.files["kernels/part.j2"] = f"static const int part = {chance.randrange(4)};\n"
    else:
        sources.files.pop("kernels/part.j2", None)


def edit_failure(sources: Sources, chance: Random) -> None:
    template = sources.templates[chance.choice(sorted(sources.templates))]
    template.fails_at = chance.choice([0, 1, 2, 2, 8, 9]) if not template.fails_at else 0


def edit_header(sources: Sources, chance: Random) -> None:
    if names := _headers(sources):
        name = chance.choice(names)
        below = name.partition("/")[2]
        includes = ""
        if chance.random() < 0.4:
            other = chance.choice(HEADERS)
            other = f"../{other}" if below.startswith("deep/") and chance.random() < 0.5 else other
            includes = chance.choice(_FORMS[:4]).format(name=other)
        sources.files[name] = header_text(below, chance.randrange(4), includes)


def edit_new_header(sources: Sources, chance: Random) -> None:
    name = _any_header(chance)
    sources.files[name] = header_text(name.partition("/")[2], chance.randrange(4))


def edit_move_header(sources: Sources, chance: Random) -> None:
    """Move one to another directory or name, or swap two."""
    if names := _headers(sources):
        old, new = chance.choice(names), _any_header(chance)
        moved, replaced = sources.files.pop(old), sources.files.get(new)
        sources.files[new] = moved
        if replaced is not None and chance.random() < 0.5:
            sources.files[old] = replaced


def edit_link_header(sources: Sources, chance: Random) -> None:
    """Have a header be a link to another one, which may be none or a link, too."""
    name, target = _any_header(chance), _any_header(chance)
    if name != target:
        sources.files[name] = LINK + target


def edit_delete_header(sources: Sources, chance: Random) -> None:
    if names := _headers(sources):
        del sources.files[chance.choice(names)]


def edit_build_keys(sources: Sources, chance: Random) -> None:
    build = sources.build
    match chance.randrange(5):
        case 0:
            build["include-dirs"] = chance.choice(
                [
                    ["include", "other"],
                    ["other", "include"],
                    ["include"],
                    ["include/deep", "include"],
                    ["include", {"package": "headers", "path": "include"}],
                ]
            )
        case 1:
            build["defines"] = {"PICK": chance.choice(["pick1", "pick2", "a"])}
        case 2:
            build["defines"] = {**build["defines"], "UNUSED": chance.randrange(3)}
        case 3:
            build["line-directives"] = not build.get("line-directives", False)
        case 4:
            build["jobs"] = chance.randrange(1, 3)


def edit_script_keys(sources: Sources, chance: Random) -> None:
    script = sources.scripts[chance.choice(sorted(sources.scripts))]
    match chance.randrange(6):
        case 0:
            script.unroll = chance.choice([[1], [1, 2], [2, 1], [2], [1, 2, 3], [3]])
        case 1:
            script.more = {**script.more, "description": chance.choice(["x", "y"])}
        case 2:
            script.more = {**script.more, "include-dirs": [chance.choice(["other", "include"])]}
        case 3:
            script.more.pop("include-dirs", None)
        case 4:
            script.more = {**script.more, "defines": {"PICK": chance.choice(["pick2", "b"])}}
        case 5:
            script.more.pop("defines", None)


def edit_toolchain(sources: Sources, chance: Random) -> None:
    sources.toolchain = chance.choice([{}, {"std": "c++17"}, {"std": "c++20"}, {"cxx": "g++"}])


def edit_scripts(sources: Sources, chance: Random) -> None:
    """Add a script, remove one or rename one."""
    host = [name for name, script in sources.scripts.items() if script.target == "cpu"]
    free = sorted(set(SCRIPTS) - set(sources.scripts))
    template = chance.choice(sorted(set(sources.templates) - {"dev"}))
    match chance.randrange(3):
        case 0 if free:
            name = chance.choice(free)
            if chance.random() < 0.5:
                sources.templates[name] = copy.deepcopy(sources.templates[template])
                template = name
            sources.scripts[name] = Script(template, [1])
        case 1 if len(host) > 1:
            del sources.scripts[chance.choice(host)]
        case 2 if free:
            sources.scripts[chance.choice(free)] = sources.scripts.pop(chance.choice(host))


def edit_library(sources: Sources, chance: Random) -> None:
    match chance.randrange(6):
        case 0:
            sources.library = None if sources.library else first("").library
        case 1:
            sources.files["src/two.cpp"] = (
                f"int one();\nint two() {{ return {chance.randrange(4)}; }}\n"
            )
        case 2:
            sources.files["src/three.cpp"] = f"int three() {{ return {chance.randrange(3)}; }}\n"
        case 3:
            sources.files.pop("src/three.cpp", None)
        case 4 if sources.library:
            sources.library["output"] = chance.choice(["out/lib.so", "out/other.so"])
        case 5 if sources.library:
            sources.library["kind"] = chance.choice(["shared", "static"])


def edit_mistake(sources: Sources, chance: Random) -> None:
    sources.mistake = "" if sources.mistake else chance.choice(['unknown = "x"', "[broken"])


def edit_heal(sources: Sources, chance: Random) -> None:
    """Have everything compile again, as far as headers do."""
    sources.mistake = ""
    begun = first("")
    for name in HEADERS:
        if not any(f"{where}/{name}" in sources.files for where in DIRECTORIES):
            sources.files[f"include/{name}"] = header_text(name, 7)
    for name, text in begun.files.items():
        sources.files.setdefault(name, text)
    for template in sources.templates.values():
        template.fails_at = 0


Edit = Callable[[Sources, Random], None]
EDITS: dict[str, Edit] = {
    name.removeprefix("edit_"): value
    for name, value in list(globals().items())
    if name.startswith("edit_")
}
WEIGHTS = {
    "heal": 6,
    "mistake": 0.7,
    "failure": 1.5,
    "header": 3,
    "number": 3,
    "include": 3,
    "toolchain": 0.6,
}
"""Of 1 for each edit that is not here."""


def draw(chance: Random, *, most: int = 3) -> Iterator[str]:
    """Yield the names of a few edits."""
    names = list(EDITS)
    weights = [WEIGHTS.get(name, 1.0) for name in names]
    yield from chance.choices(names, weights, k=chance.choice([1, 1, 1, 2, most]))
