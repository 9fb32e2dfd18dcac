"""The Anvil."""

from gluon_core.plugin.targets import Architecture, Limits

ARCHITECTURES = (
    Architecture(
        "acme1",
        "acme",
        ("anvil",),
        arch="acme1",
        triton_backend="acme",
        warp_size=32,
        limits=Limits(shared_memory=48 << 10, max_warps=16),
        capabilities=frozenset({"acme.clamp"}),
        description="the invented Anvil",
    ),
)
