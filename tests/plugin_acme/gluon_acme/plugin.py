"""The plugin: the hardware, and the facets of its backend."""

from gluon_acme.compiler import AcmeCompiler
from gluon_acme.device import AcmeDevice
from gluon_core.plugin import Architecture, Backend, Language, Limits, Lowering, hookimpl

ANVIL = Architecture(
    name="acme1",
    backend="acme",
    aliases=("anvil",),
    arch="acme1",
    triton_backend="acme",
    warp_size=32,
    limits=Limits(shared_memory=48 << 10, max_warps=16),
    capabilities=frozenset({"acme.clamp"}),
)
LOAD = Lowering(
    "load",
    "acme_load",
    "gluon_acme.lower:load",
    requires=("acme.clamp",),
    priority=10,
    accepts="gluon_acme.lower:load_accepts",  # True, or why not
)


@hookimpl
def gluon_backends():
    language = Language(
        namespace="gluon_acme.language",
        host="gluon_acme.host",
        reference="gluon_acme.reference",
        lowerings=(LOAD,),
        descriptors={"tensordesc_acme": "gluon_acme.language.tiles:tile_map_type"},
    )
    facets = {"compiler": AcmeCompiler(), "device": AcmeDevice(), "language": language}
    return [Backend("acme", (ANVIL,), **facets, api_version=3)]  # the contract's version
