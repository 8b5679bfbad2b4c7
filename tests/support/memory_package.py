"""A package that tests hold in memory, honest or not: the double of `package.model.Reader`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tilusbuild.package.model import ContainerFile


@dataclass
class MemoryReader:
    """Hands over `layers`, whatever `listed` says of them: (path, size as claimed, content)."""

    listed: bytes
    layers: Sequence[Sequence[tuple[str, int, bytes]]]
    beside: dict[str, bytes] = field(default_factory=dict)
    packed: int | None = None
    kind: str = "memory"

    def list_bytes(self) -> bytes:
        return self.listed

    def attestations(self) -> dict[str, bytes]:
        return self.beside

    def stream(self) -> Iterator[ContainerFile]:
        for layer in self.layers:
            for path, size, data in layer:
                yield ContainerFile(path, size, iter([data]))

    def close(self) -> None:
        return None
