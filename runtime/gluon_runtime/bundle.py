"""Bundles: `open_bundle(path)["matmul"][grid](...)`."""

from __future__ import annotations

import json
import os
from typing import Any, Iterator, Mapping, Optional, Union

from gluon_runtime import container, drivers, native
from gluon_runtime import manifest as manifests
from gluon_runtime.driver import Driver
from gluon_runtime.errors import BundleFormatError, BundleHashError, BundleKernelError
from gluon_runtime.kernel import BundledKernel, Grid

__all__ = ["Bundle", "BundledKernel", "Grid", "open_bundle"]


def open_bundle(
    path: Union[str, "os.PathLike[str]"],
    *,
    digest: Optional[str] = None,
    driver: Optional[Driver] = None,
) -> "Bundle":
    """Read a bundle. No kernel is loaded and no driver called before the first launch.

    Args:
        path: the file.
        digest: the sha256 that it must have, as `gluon bundle inspect` printed it.
        driver: the driver that launches; None for the driver of this machine.

    Raises:
        BundleError: one class for each way in which a file may be no such bundle.
    """
    return Bundle(container.read(path, digest), str(path), driver)


class Bundle(Mapping[str, "BundledKernel"]):
    """The kernels of a bundle by name.

    Attributes:
        path: of the file.
        digest: its sha256.
        manifest: all that it says of itself.
        index: the same for the engine in C.
        members: name -> bytes of the parts of the file.
    """

    def __init__(self, read: container.Container, path: str, driver: Optional[Driver] = None):
        self.path = path
        self.digest = read.digest
        self.members = read.members
        self.manifest = manifests.parse(read.members[container.MANIFEST], path)
        for member in self.manifest.members:
            if member not in self.members:
                raise BundleHashError("a part is missing", argument=f"{path}:{member}")
        self._driver = driver
        try:
            self.index = native.engine.open(self.member(container.INDEX))
        except ValueError as error:
            raise BundleFormatError(str(error), argument=path, remedy="Build it anew.") from None
        kernels = self.manifest.kernels
        numbers = {name: number for number, name in enumerate(sorted(kernels))}
        self._kernels = {n: BundledKernel(self, n, kernels[n], numbers[n]) for n in kernels}

    @property
    def driver(self) -> Driver:
        """Return the driver that launches the kernels."""
        if self._driver is None:
            wanted = {f.driver for k in self.manifest.kernels.values() for f in k.forms}
            self._driver = drivers.find(sorted(wanted))
        return self._driver

    @property
    def certificate(self) -> Optional[Mapping[str, Any]]:
        """Return the certificate that the bundle was built with (`gluon bundle --certify`); None without one.

        Raises:
            BundleHashError: it differs from the hash in the manifest.
        """
        if container.CERTIFICATE not in self.manifest.members:
            return None
        content: Mapping[str, Any] = json.loads(self.member(container.CERTIFICATE))
        return content

    def member(self, name: str) -> bytes:
        """Return a part of the file.

        Raises:
            BundleHashError: it differs from the hash in the manifest.
        """
        data, stated = self.members[name], self.manifest.members[name]
        really = manifests.digest_of(data)
        if really != stated:
            raise BundleHashError(
                "a part of the bundle was exchanged",
                argument=f"{self.path}:{name}",
                expected=f"sha256 {stated}",
                got=really,
            )
        return data

    def __getitem__(self, name: str) -> "BundledKernel":
        try:
            return self._kernels[name]
        except KeyError:
            raise BundleKernelError(
                f"{self.path} has no kernel {name!r}",
                argument="name",
                expected=f"one of {', '.join(self._kernels)}" if self._kernels else None,
            ) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._kernels)

    def __len__(self) -> int:
        return len(self._kernels)

    def __repr__(self) -> str:
        return f"Bundle({self.path!r}, {len(self)} kernels)"
