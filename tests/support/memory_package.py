"""A package that tests hold in memory, honest or not: the double of `package.reader.Reader`."""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field

from tilusbuild.package.model import ContainerFile


@dataclass
class MemoryReader:
    """Hands over `layers`, whatever `listed` says of them: (path, size as claimed, content).

    `asked` notes what was asked for: the layers that came, by number.
    """

    listed: bytes
    layers: Sequence[Sequence[tuple[str, int, bytes]]]
    beside: dict[str, bytes] = field(default_factory=dict)
    packed: int | None = None
    kind: str = "memory"
    asked: list[int] = field(default_factory=list)

    def list_bytes(self) -> bytes:
        return self.listed

    def attestations(self) -> dict[str, bytes]:
        return self.beside

    def stream(self, layers: int, skip: Container[int]) -> Iterator[ContainerFile]:
        for number, layer in enumerate(self.layers):
            if number not in skip:
                self.asked.append(number)
                for path, size, data in layer:
                    yield ContainerFile(path, size, iter([data]))

    def close(self) -> None:
        return None
