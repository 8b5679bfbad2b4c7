"""Which flags a manifest may not have: those that run, write, or name a file."""

import random
import re
import shutil

import pytest

from support.hostile import reads
from support.processes import run_to_end
from tilusbuild.errors import InputError
from tilusbuild.manifest.denied_flags import find_denied_flags, list_flag_problems


def flags(text: str) -> list[str]:
    """Flags of a text, two or more spaces or a line apart; `\\n` in one is a line's end."""
    return [flag.replace("\\n", "\n") for flag in re.split(r"  +|\n", text.strip())]


RUN = flags("""
-fplugin=x.so  -wrapper a,b  -B.  -B /x  --prefix=/x  -fmodule-mapper=|x  -Wl,-plugin,x.so
-Wl,--plugin=x  -fuse-ld=x  -specs=x  --compiler-bindir=x
""")
WRITE = flags("""
-Wp,-MD,x  -Wl,-Map,x  -Wl,-Map=x  -Wl,-o,x  -Wa,-a=x  -dumpdir x  -fdump-tree-all  -aux-info x
-fopt-info=x  -fopt-info  --time x  -time  -fdevice-time-trace x  --dependency-output x
-Xcompiler -o,x  -fstack-usage  -Xcompiler=-MD  -forward-unknown-opts
-forward-unknown-to-host-compiler  --coverage  -fprofile-generate  -ftest-coverage
-fcallgraph-info  -save-temps=obj  -gsplit-dwarf
""")
READ = flags("""
@file  -imacros x  -includex.h  -Wp,-I,/x  --include-directory=/x  -Xcompiler -I,x
--options-file x  -optf x  -L/x  -lfoo  -l:x.a  -T x  -Wl,-T,x  /x/y.o  x.a
-Xptxas --options-file=x  -Xlinker -rpath=x  -fprofile-use=x  -isysroot x  -Xlinker -L..
-Xcompiler @x  -Xcudafe --preinclude=x  -Xlinker @x  --apply-controls=/x
-mcpu=native  -Xcompiler -mtune=native  -mllvm -load=x  -mllvm=-load  -D  -U
""")
OF_NVCC = flags("""
-Xcompiler -fabi-version=0,-save-temps  -Xcompiler=-finline-limit=1,-wrapper,env
$(touch x)  -O3;touch x  -Xcompiler -fdebug-prefix-map=$(touch)=b
-Xcompiler -ffile-prefix-map=a=`touch`  -Xcompiler=-fmacro-prefix-map=a;touch;=b
-Xcompiler -ffile-prefix-map=a=b\\ntouch  -Xcompiler -ffile-prefix-map=a='b  -U$(touch)
-U `touch`  --undefine-macro=$(touch)  -undefine-macro a;touch
""")
"""nvcc takes words apart at commas, and hands them to a shell."""
PASS_GPU = flags("""
-O4  --enable-tile  --next-years=x,y  --next-years x  -lto  -Xptxas --legacy-bar-warp-wide-behavior
-O3 -lineinfo  --use_fast_math  -Xptxas -O3,-v  -Xptxas=-dlcm=ca  -maxrregcount=64
--maxrregcount 64  -DX=$(touch)  -D X=1  -UX  --expt-relaxed-constexpr  -G  --extended-lambda
-Xcompiler -fopenmp,-Wall  -Xcompiler -ffile-prefix-map=/a/b+c=%d  -Xcompiler -Wno-unused  -t 4
-lm  --threads=4  --diag-suppress 177,20012  -Xcudafe --diag_suppress=177  -default-device
--ptxas-options=--register-usage-level=10  -Xptxas -regUsageLevel=3,--dont-merge-basicblocks
-ftz=true  --split-compile=0  -Xfatbin -compress-all  --restrict  -dopt on
-ftemplate-backtrace-limit=0  --ftemplate-depth 2000
""")
PASS_CPU = flags("""
-flto  -nostdinc  -ftime-report  -fnext-years=x  -fsanitize=address,undefined  -Wl,-Bsymbolic
-pg  -Wl,-z,relro,-z,now
-O2  -Ofast  -fopenmp  -mavx2  -mfma  -ffast-math  -fno-math-errno  -Wall  -funroll-loops
-fopenmp -lm  -Wno-error=unused  --param=max-unroll-times=4  -g  -Wl,--as-needed  -Wl,-z,relro
-mprefer-vector-width=256  -fvisibility=hidden
""")


def denied(flags: str, *, cpu: bool) -> list[str]:
    return [flag.text for flag in find_denied_flags(flags.split(" "), cpu=cpu)]


@pytest.mark.parametrize("flags", [*RUN, *WRITE, *READ])
@pytest.mark.parametrize("cpu", [True, False])
def test_what_is_refused(flags, cpu):
    assert denied(flags, cpu=cpu)


def test_what_links_or_reads_outside_is_refused(tmp_path):
    for seed in range(200):
        flags = reads.flags(random.Random(seed), tmp_path)
        for cpu in (True, False):
            assert denied(" ".join(flags), cpu=cpu), flags


@pytest.mark.parametrize("flags", OF_NVCC)
def test_what_is_refused_of_nvcc(flags):
    assert denied(flags, cpu=False)


@pytest.mark.parametrize("value", " !\"#$&'()*;<>?[]`{|}~\\\n")
def test_what_a_shell_reads_is_a_macro(value):
    """Only a macro is escaped for nvcc's shell."""
    flags = ["-Xcompiler", f"-ffile-prefix-map=a={value}b"]
    assert list(find_denied_flags(flags, cpu=False))
    assert not list(find_denied_flags([f"-DX={value}"], cpu=False))


def test_the_words_that_are_shown_have_the_flag_that_passes_them_on():
    assert denied("-O3 -Xcompiler -O2,-B/x -lfoo", cpu=False) == ["-Xcompiler -O2,-B/x", "-lfoo"]


@pytest.mark.parametrize("flags", PASS_GPU)
def test_what_passes_for_a_gpu(flags):
    assert not denied(flags, cpu=False)


@pytest.mark.parametrize("flags", PASS_CPU)
def test_what_passes_for_the_host(flags):
    assert not denied(flags, cpu=True)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_every_option_of_gccs_that_names_a_file_is_denied():
    """Of all that gcc says of itself: options whose value or whose text is of files or programs."""
    environment = {"LC_ALL": "C", "PATH": "/usr/bin:/bin", "COLUMNS": "400"}
    output = ""
    for kind in ("common", "c", "c++", "optimizers", "target"):
        argv = ["gcc", f"--help={kind}"]
        output += run_to_end(argv, status=None, env=environment).stdout
    options = dict(re.findall(r"^ +(-\S+(?: <\S+>)?)\s+(.*)$", output, re.MULTILINE))
    files = re.compile(
        r"<(file|dir|path|name\.so|command|prog)|\b(plugin|dump|\.gcda)\b", re.IGNORECASE
    )
    odd = {o: text for o, text in options.items() if files.search(f"{o} {text}")}
    assert len(odd) > 20
    allowed = set()
    for option in odd:
        word = re.sub(r"<.*|\[.*", "", option)
        value = "/x" if word.endswith(("=", ",")) else " /x" if " <" in option else ""
        if not denied(word.strip() + value, cpu=True):
            allowed.add(option)
    # A prefix of names; gcc's own plugin; the report of a crash, in TMPDIR.
    harmless = {"-fada-spec-parent=unit", "-fuse-linker-plugin", "-freport-bug"}
    assert {o for o in allowed if "prefix-map" not in o} <= harmless, {o: odd[o] for o in allowed}


def test_the_message_names_flag_place_and_the_way_out(load_script):
    with pytest.raises(InputError) as raised:
        load_script('flags = ["-O3", "-fplugin=x.so"]')
    message = raised.value.render()
    assert message.startswith(
        'tilus.toml:11:17: error: "-fplugin=x.so" runs a program that no hash'
    )
    assert "unsafe-flags = true" in message


@pytest.mark.parametrize("where", ["build", "script"])
def test_unsafe_flags_lets_them_through(load_script, where):
    text = 'flags = ["-fplugin=x.so"]\n'
    text += "unsafe-flags = true" if where == "script" else "[build]\nunsafe-flags = true"
    assert load_script(text).merge_flags("m", "gpu") == ("-fplugin=x.so",)


def test_unsafe_flags_leaves_what_tilusbuild_sets(load_script):
    with pytest.raises(InputError, match="is set by tilusbuild"):
        load_script('flags = ["-o"]\nunsafe-flags = true')


@pytest.mark.parametrize(
    ("flag", "refused"),
    [
        ("@x", True),
        ("-Wl,--as-needed,@x", True),
        ("-Xcompiler=-O2,@x", True),
        ("-optf=x", True),
        ("-DX=a,@b", False),
        ("-Wl,-rpath=@x", False),
    ],
)
def test_a_file_of_flags_is_never_taken(flag: str, refused: bool) -> None:
    """Not with `unsafe-flags` either: no hash has its words, and nothing says that it was read."""
    problems = list(list_flag_problems([flag], unsafe=True, cpu=False))
    assert bool(problems) == refused
    assert all("write its flags here" in hint for _, _, hint in problems)
