"""The kernel pipeline with nvcc: a cubin, or a fatbin for several architectures and for PTX."""

from __future__ import annotations

from tilusbuild.arch import gencode
from tilusbuild.compile.model import Recipe
from tilusbuild.compile.pipelines.kernel import KernelPipeline, code_names
from tilusbuild.compile.pipelines.nvcc import NvccPipeline, has_line_info
from tilusbuild.compile.steps import HERE, SOURCE, Step

_ANONYMOUS_FILES = (
    "-e",
    rf's#^([[:space:]]*\.file[[:space:]]+[0-9]+[[:space:]]+")({HERE}/)?#\1/tilusbuild/#',
    "-e",
    r's#^([[:space:]]*\.file[[:space:]]+[0-9]+[[:space:]]+")[^"]*/bin/\.\./[^"]*/?include/#\1/cuda/include/#',
    "-e",
    r's#^([[:space:]]*\.file[[:space:]]+[0-9]+[[:space:]]+")/tilusbuild//#\1/#',
)


class KernelNvcc(KernelPipeline, NvccPipeline):
    def applies(self, target: str, has_kernel: bool, device_compiler: str) -> bool:
        return target == "cuda" and has_kernel and device_compiler == "nvcc"

    def device_steps(self, recipe: Recipe, image: str) -> list[Step]:
        if has_line_info(recipe):
            return self._by_way_of_ptx(recipe, image)
        mode = "-cubin" if image.endswith(".cubin") else "-fatbin"
        code = gencode(recipe.archs, ptx=recipe.ptx)
        return [Step("device", (*self.nvcc(recipe, mode, code), SOURCE, "-o", image), image)]

    def _by_way_of_ptx(self, recipe: Recipe, image: str) -> list[Step]:
        """With line information, ptxas writes the name, time and size of each source file it finds.

        So the PTX is made first, and its `.file` lines are given names under which nothing is found
        and which do not tell where the toolkit is.
        """
        made: list[Step] = []
        images: list[str] = []
        codes = gencode(recipe.archs, ptx=recipe.ptx)[1::2]
        for code, names in zip(codes, code_names(recipe), strict=True):
            virtual = code.removeprefix("arch=").split(",code=")[0]
            stem = "program" if image.endswith(".cubin") else names[0]
            ptx, cubin = f"{stem}.ptx", f"{stem}.cubin"
            single = ("-gencode", f"arch={virtual},code={names[0]}")
            to_ptx = self.nvcc(recipe, "-ptx", ("-arch", virtual))
            made += [
                Step("ptx", (*to_ptx, SOURCE, "-o", ptx), ptx),
                Step("names", ("{sed}", "-E", "-i", *_ANONYMOUS_FILES, ptx), ptx),
                Step("device", (*self.nvcc(recipe, "-cubin", single), ptx, "-o", cubin), cubin),
            ]
            number = names[0].removeprefix("sm_")
            images.append(f"--image3=kind=elf,sm={number},file={cubin}")
            if len(names) > 1:
                images.append(f"--image3=kind=ptx,sm={number},file={ptx}")
        if not image.endswith(".cubin"):
            argv = ("{fatbinary}", f"--create={image}", "-64", *images)
            made.append(Step("fatbinary", argv, image))
        return made


KERNEL_NVCC = KernelNvcc()
