"""The words of a compiler's command: its options, each with its value.

Files of options are read in their place, as the compilers do it: a value is often only there.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence

from msgspec import Struct, field

from tilusbuild.runtime.regular import try_read_text

_NAME_PAIRS = """
    --include-path -I  --system-include -isystem  --define-macro -D  --undefine-macro -U
    --pre-include -include  --gpu-architecture -arch  --gpu-code -code  --generate-code -gencode
    --std -std  --compiler-options -Xcompiler  --ptxas-options -Xptxas  --linker-options -Xlinker
    --output-file -o  --output-directory -odir  --compiler-bindir -ccbin  --library -l
    --library-path -L  --threads -t  --dependency-output -MF  --options-file -optf
    --cuda-gpu-arch -arch  --offload-arch -arch  --cuda-path -ccbin  --cudart -cudart
    --compile -c  --device-c -dc  --device-w -dw  --device-link -dlink
    --relocatable-device-code -rdc  --lib -lib  --shared -shared
    --ptx -ptx  --cubin -cubin  --fatbin -fatbin
    --generate-dependencies -M  --generate-dependencies-with-compile -MD
    --generate-nonsystem-dependencies-with-compile -MMD
"""
# By the long names of nvcc's options, and by those of clang that say the same.
_SHORT_NAMES = dict(zip(_NAME_PAIRS.split()[::2], _NAME_PAIRS.split()[1::2], strict=True))

_OPTIONS_WITH_VALUE_TEXT = """
    -o -odir -x -ccbin -MF -MT -MQ -MJ -I -isystem -iquote -idirafter -D -U -std -include -gencode
    -arch -code -Xcompiler -Xptxas -Xlinker -Xcudafe -Xfatbin -Xassembler -Xnvlink -nvlink-options
    -diag-suppress --diag-suppress -t -l -L -optf -march -cudart -rdc --param -isysroot --sysroot
    -fdevice-time-trace --fdevice-time-trace -keep-dir --keep-dir --time -arbin -ldir -Xarchive
    -imacros -dumpdir -T -u -z
"""
_OPTIONS_WITH_VALUE = frozenset(_OPTIONS_WITH_VALUE_TEXT.split())
# `-Iinclude`, `-isystem=include`, `-lcublas`.
_JOINED_OPTION = re.compile(
    r"(-(?:isystem|iquote|idirafter|[IDULx]|l(?!(?:ineinfo|ib|to|toir)$)))=?(.+)"
)
# `sm_90`, `c++17`, `compute_90,sm_90`: no path, and no further option.
_PLAIN_VALUE = re.compile(r"[\w+][\w+,-]*")
_MACRO_LIST = re.compile(r"-Wp(,-[DU][^,]+)+")
# An item of a list of nvcc's: no comma, unless a backslash or a quote protects it.
_LIST_ITEM = re.compile(r'(?:\\.|"(?:\\.|[^\\"])*"|[^\\,])+', re.DOTALL)
# Files that name each other twice would double the words at each level.
_MAX_WORDS = 100_000


class Option(Struct, frozen=True):
    """One option of a command, or one word that is not an option."""

    name: str
    """The short one, where there is a long one too; the word itself, of what is not an option."""
    value: str
    written: tuple[str, ...]


class _ArgumentReader(Struct):
    """The arguments of a command, with those in the files that it names in their place."""

    directory: str
    unread: list[str]
    """The arguments whose files cannot be read."""
    count: int = 0
    open_paths: list[str] = field(default_factory=list)

    def read_arguments(self, words: Sequence[str]) -> Iterator[str]:
        """Yield the arguments, those of a file in its place. Count the words; add files that cannot
        be read to `unread`. Raises `ValueError` for more than `_MAX_WORDS`."""
        remaining_words = iter(words)
        previous_word = ""
        for word in remaining_words:
            self.count += 1
            if self.count > _MAX_WORDS:
                raise ValueError(f"a command has more than {_MAX_WORDS:,} words")
            name, equals, value = word.partition("=")
            # A word after an option such as -Xcompiler is passed on, so that it names no file here.
            if word.startswith("@") and not _SHORT_NAMES.get(
                previous_word, previous_word
            ).startswith("-X"):
                yield from self._read_flag_file(word, word[1:])
            elif _SHORT_NAMES.get(name, name) == "-optf":
                # `-optf=a.txt,b.txt`, or the files as the next word.
                paths = value if equals else next(remaining_words, "")
                for path in paths.split(","):
                    yield from self._read_flag_file(f"{name} {path}", path)
            elif _MACRO_LIST.fullmatch(word):
                yield from word.split(",")[1:]
            else:
                yield word
            previous_word = word

    def _read_flag_file(self, argument: str, name: str) -> Iterator[str]:
        """Yield the arguments in a file; add `argument` to `unread` if it cannot be read."""
        path = os.path.join(self.directory, name)
        # A file that names itself, also through another file, would be read without end.
        text = None if path in self.open_paths else try_read_text(path, "replace")
        if text is None:
            self.unread.append(argument)
            return
        self.open_paths.append(path)
        yield from self.read_arguments(split_command(text))
        self.open_paths.pop()


def parse_options(words: Sequence[str], directory: str, unread: list[str]) -> Iterator[Option]:
    """Yield the options of a compiler's arguments; add the files of options that cannot be read to
    `unread`. Raises `ValueError`."""
    arguments = list(_ArgumentReader(directory, unread).read_arguments(words))
    index = 0
    while index < len(arguments):
        word = arguments[index]
        if has_value(arguments, index):
            value = arguments[index + 1]
            yield Option(_SHORT_NAMES.get(word, word), value, (word, value))
            index += 1
        else:
            yield _parse_option(word)
        index += 1


def _parse_option(word: str) -> Option:
    """Return the option in one word: `-std=c++17`, `-Iinclude`, or a flag or file by itself."""
    name, equals, value = word.partition("=")
    short = _SHORT_NAMES.get(name, name)
    if equals and name.startswith("-") and short in _OPTIONS_WITH_VALUE:
        return Option(short, value, (word,))
    if match := _JOINED_OPTION.fullmatch(word):
        return Option(match[1], match[2], (word,))
    return Option(_SHORT_NAMES.get(word, word), "", (word,))


def has_value(words: Sequence[str], index: int) -> bool:
    """Return whether the next word is the value of the one at an index."""
    if index + 1 >= len(words):
        return False
    word, following = words[index : index + 2]
    if _SHORT_NAMES.get(word, word) in _OPTIONS_WITH_VALUE:
        return True
    # A word that is neither a flag nor a file belongs to the flag before it.
    return (
        word.startswith("-") and "=" not in word and _PLAIN_VALUE.fullmatch(following) is not None
    )


def split_list(value: str) -> list[str]:
    """Return the items of a value that nvcc takes apart at commas, such as that of `-D`."""
    return [re.sub(r"\\(.)", r"\1", item) for item in _LIST_ITEM.findall(value)]


def split_command(command: str) -> list[str]:
    """Return the words of a shell's command; of one with an open quote, the parts between
    blanks."""
    try:
        return shlex.split(command)
    except ValueError:  # a quote that does not end
        return command.split()
