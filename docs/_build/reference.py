"""The pages of the language reference, made from the language itself and from examples that ran.

The live objects hold the requirements of an op and its first release, and plugins add names to them, so
this asks the objects and not the source. `docs/conf.py` writes the pages where Sphinx reads them.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any, Iterable, Iterator, Mapping

sys.path.insert(0, str(Path(__file__).parent))

import mistakes  # noqa: E402
import sections  # noqa: E402
from public_names import (  # noqa: E402
    VENDORS,
    exampled,
    is_host,
    known_host_names,
    missing,
    resolve,
    room_names,
    shown_sections,
    used_in_examples,
    vendor_names,
)
from gluon_core.registry.load import registry  # noqa: E402

# Page -> (title, text above its entries, files of examples).
PAGES = {
    "control": (
        "Programs and control",
        "The place of a program, its waits, and constructs that run while it is traced.",
        ("control",),
    ),
    "tensors": (
        "Tensors and dtypes",
        "Making tensors, changing their shape, moving them to other layouts.",
        ("tensors",),
    ),
    "elementwise": ("Element by element", "Arithmetic and mathematics.", ("elementwise",)),
    "reductions": (
        "Reductions, scans, products",
        "Ops that combine the elements of a tensor.",
        ("reductions",),
    ),
    "memory": (
        "Memory",
        "Global memory through pointers, shared memory through buffers, atomics.",
        ("memory",),
    ),
    "layouts": (
        "Layouts",
        "The place of each element. [Layouts](../layouts.md) explains them, and shows pictures.",
        ("layouts",),
    ),
    "portable": (
        "Portable ops",
        "One meaning, an implementation for each kind of hardware, chosen when a kernel is traced.",
        ("portable",),
    ),
    "host": ("Host code", "The names that programs import: `import gluon_core as gluon`.", ("host",)),
    "host_layouts": (
        "gluon.layouts",
        "The algebra of layouts: pure Python over NumPy, without Triton.",
        ("host_layouts",),
    ),
    "host_torch": (
        "gluon.torch",
        "Kernels as operators of PyTorch. [The guide](../torch.md) goes through it.",
        ("host_torch",),
    ),
    "operators": (
        "gluon_kernels",
        "Operators of PyTorch: `pip install gluon-kernels`. They take CUDA tensors, and on a machine without a GPU tensors of the CPU, which the simulator runs.",
        ("operators",),
    ),
    "host_distributed": (
        "gluon.distributed",
        "Ranks whose kernels reach each other's memory. [The guide](../multi-gpu.md) goes through it.",
        ("host_distributed",),
    ),
    "host_testing": (
        "gluon.testing",
        "The code of kernels, for tests. [Testing](../guides/testing.md) shows the rest.",
        ("host_testing",),
    ),
    "host_tune": (
        "gluon.tune, gluon.certify",
        "Searching for the configuration of a kernel that does best: [tuning](../tuning.md). Comparing the simulator with machine code: [certificates](../certify.md).",
        ("host_tune", "host_certify"),
    ),
    "host_vendors": (
        "gluon.nvidia, gluon.amd",
        "Names that plugins offer to host code.",
        ("host_vendors",),
    ),
    "plugins_contract": (
        "gluon_core.plugin",
        "Classes that a plugin hands over, and the calls that it answers. [Plugins](../plugins.md) makes one.",
        ("plugins_contract",),
    ),
    "plugins_ops": (
        "gluon_core.plugin.ops, .plugin.semantic, .values",
        "The library for the code of a plugin. [Plugins](../plugins.md) makes one.",
        ("plugins_ops",),
    ),
}

# -- an entry ------------------------------------------------------------------------------------


def _parameter(parameter: inspect.Parameter) -> str:
    """Return `name: type = default`; a default that is text stays in quotes."""
    text = str(parameter.replace(default=inspect.Parameter.empty)).replace("'", "")
    if parameter.default is inspect.Parameter.empty:
        return text
    is_text = isinstance(parameter.default, str)
    default = f'"{parameter.default}"' if is_text else repr(parameter.default).replace("'", "")
    equals = "=" if parameter.annotation is inspect.Parameter.empty else " = "
    return f"{text}{equals}{default}"


def signature(name: str, value: Any) -> str:
    """As one would call it, with the types that it takes."""
    if not callable(value) or inspect.isclass(value) and not hasattr(value, "__dataclass_fields__"):
        return ""
    try:
        sign = inspect.signature(getattr(value, "fn", value))
    except (TypeError, ValueError):
        return ""
    parts, star = [], False
    for parameter in sign.parameters.values():
        if parameter.name in ("self", "_semantic", "_generator"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            parts.append("*")
        star = star or parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        text = _parameter(parameter)
        parts.append(re.sub(r"<factory>|<dataclasses\._HAS_DEFAULT_FACTORY_CLASS.*?>", "[]", text))
        parts[-1] = re.sub(r"<function .* at 0x\w+>", "...", parts[-1])
    line = f"{name}({', '.join(parts)})"
    back = sign.return_annotation
    if back is not inspect.Signature.empty and not inspect.isclass(value):
        line += f" -> {back if isinstance(back, str) else getattr(back, '__name__', back)}"
    line = line.replace("'", "")
    if len(line) > 90:
        head, _, tail = line.rpartition(")")
        line = f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){tail}"
        line = line.replace("'", "")
    return f"```py\n{line}\n```\n"


_SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Yields):$")


def prose(text: str) -> str:
    """Return a docstring as Markdown: the sections as lists."""
    out: list[str] = []
    section = ""
    for line in inspect.cleandoc(text).splitlines():
        heading = _SECTION.match(line)
        if heading:
            section = heading[1]
            out += ["", f"**{section}**", ""]
        elif section and line.startswith("    "):
            item = re.match(r"    ([\w*, .]+): (.*)", line)
            if item and not line.startswith("     "):
                names = ", ".join(f"`{n.strip()}`" for n in item[1].split(","))
                out.append(f"- {names}: {item[2]}")
            elif line.startswith("     ") or section in ("Returns", "Yields"):
                out.append(
                    "  " + line.strip() if out[-1].startswith(("- ", "  ")) else line.strip()
                )
            else:
                out.append(line.strip())
        else:
            section = section if not line else ""
            out.append(line)
    return "\n".join(out) + "\n"


def needs(value: Any) -> str:
    """Return the line on the requirements of an op: capabilities and release of Triton."""
    words = []
    for capability in getattr(value, "requires", ()):
        having = [a.name for a in registry().architectures() if capability in a.capabilities]
        words.append(f"`{capability}` ({', '.join(having)})")
    since = getattr(value, "since", None)
    if since is not None:
        words.append(since.releases)
    return f"Needs {', '.join(words)}.\n" if words else ""


def doc(value: Any) -> str:
    text = inspect.getdoc(value) or ""
    ours = (getattr(value, "__module__", None) or "").startswith("gluon_")
    if inspect.isclass(value) and not ours:
        return ""  # a class of Triton's that the language shows under its own name
    if not callable(value) and not hasattr(type(value), "has"):
        return ""  # a dtype: its class says nothing of it
    return prose(text)


def anchor(name: str) -> str:
    """Return the targets of links by name. Sphinx does not tell `gluon.torch.Op` from `gluon.torch.op`."""
    shown = name if is_host(name) else f"gl.{name}"
    path, _, last = name.rpartition(".")
    known = room_names() if name.startswith("gluon_core.") else known_host_names()
    twin = is_host(name) and last[:1].isupper() and f"{path}.{last.lower()}" in known
    return f"{shown}_class" if twin else shown


def entry(name: str, value: Any) -> str:
    shown = name if is_host(name) else f"gl.{name}"
    return f"({anchor(name)})=\n### {shown}\n\n" + "\n".join(
        part for part in (signature(shown, value), doc(value), needs(value)) if part
    )


def shown_example(section: sections.Section) -> str:
    text = f"```python\n{section.code}\n```\n"
    if section.output:
        text += f"\nprints\n\n```text\n{section.output}\n```\n"
    return text


def lowerings(op: str) -> str:
    """Return the table of the lowerings of a portable op, and their vendors."""
    choices = registry().lowerings(op)
    if not choices:
        return ""
    rows = ["| lowering | of | needs |", "| --- | --- | --- |"]
    for one in choices:
        wanted = ", ".join(f"`{c}`" for c in one.requires) or "nothing"
        rows.append(f"| `{one.name}` | `{registry().contributor(one).plugin}` | {wanted} |")
    return f"`{op}` becomes the first of these that the target has and the operands fit:\n\n" + (
        "\n".join(rows) + "\n"
    )


# -- pages ---------------------------------------------------------------------------------------


def _examples_page(title: str, lead: str, stems: Iterable[str]) -> str:
    out = [f"# {title}\n", f"{lead}\n"]
    described = set()  # a class may have several examples
    for stem in stems:
        file = sections.FOLDER / f"{stem}.py"
        out.append(f"The examples{'' if stem == stems[0] else ' below'} have in common:\n")
        out.append(f"```python\n{sections.preamble(file)}\n```\n")
        for section in shown_sections(file):
            head = ", ".join(n.rpartition(".")[2] for n in section.names[:4])
            head += ", ..." if len(section.names) > 4 else ""
            out.append(f"## {head}\n")
            out.append(
                f"{section.title[:1].upper()}{section.title[1:]}.\n" if section.title else ""
            )
            out.append(shown_example(section))
            for name in section.names:
                if name in described:
                    continue
                described.add(name)
                out.append(entry(name, resolve(name)))
                out.append(lowerings(name.rpartition(".")[2]) if "portable." in name else "")
    return "\n".join(out)


def _vendor_page(vendor: str) -> str:
    own = {id(resolve(name)): s for name, s in exampled().items() if name.startswith(vendor + ".")}
    used = used_in_examples()
    out = [
        f"# gl.{vendor}\n",
        "Each name is under the oldest generation that has it; later ones have it as well "
        "(`dir(gl.nvidia.hopper)` lists one). The examples have in common:\n",
    ]
    files = [file for file in sections.files() if file.stem.partition("_")[0] == vendor]
    for file in files:
        out.append(f"Of `{file.name}`:\n")
        out.append(f"```python\n{sections.preamble(file)}\n```\n")
    shown: set[tuple[str, int]] = set()
    group = ""
    for name, value in sorted(vendor_names(vendor).items()):
        module = name.rpartition(".")[0]
        if module != group:
            group = module
            out.append(f"## gl.{module}\n")
        out.append(entry(name, value))
        section = own.get(id(value))
        place = ("", 0) if section is None else (section.file.name, section.first)
        if section is not None and place not in shown:
            shown.add(place)
            out.append(f"In `{section.file.name}`:\n" if len(files) > 1 else "")
            out.append(shown_example(section))
        elif section is not None:
            out.append(f"See its example at [gl.{section.names[0]}](#gl.{_first(section)}).\n")
        else:
            where = used.get(name.rpartition(".")[2], [])
            if where:
                out.append(f"Used in {', '.join(f'`{f}`' for f in where[:4])}.\n")
    return "\n".join(out)


def _first(section: sections.Section) -> str:
    """Return the heading under which the page has an example: its first name in the page's order."""
    listed = {id(v): n for n, v in vendor_names(section.names[0].partition(".")[0]).items()}
    return sorted(listed[id(resolve(name))] for name in section.names)[0]


def commands() -> Iterator[tuple[str, Any]]:
    """Yield the commands of `gluon` with their names."""
    import typer.main

    from gluon_cli.app import app

    group: Any = typer.main.get_command(app)
    context = typer.Context(group)
    yield from (
        (name, group.get_command(context, name)) for name in sorted(group.list_commands(context))
    )


def _cli_page() -> str:
    out = [
        "# The command line\n",
        "Exit codes: 0 passed, 1 a kernel or a result failed, 2 the command line is not legal, "
        "3 this machine or target cannot do it.\n",
    ]
    for name, command in commands():
        out.append(f"## gluon {name}\n\n{(command.help or '').strip()}\n")
        out.append("| argument or option | |\n| --- | --- |")
        for parameter in command.params:
            if parameter.name == "help":
                continue
            names = "/".join((*parameter.opts, *parameter.secondary_opts))
            if parameter.param_type_name == "argument":
                names = parameter.metavar or parameter.name.upper()
            text = (getattr(parameter, "help", None) or "").replace("|", "\\|").replace("\n", " ")
            out.append(f"| `{names}` | {text} |")
        out.append("")
    return "\n".join(out)


# Variables of the environment that no dataclass describes.
SETTINGS = {
    "GLUON_TARGET": "The target of launches and compilations that name none: "
    "`sim:hopper`, `emu:gfx942`, `sm_90`.",
    "GLUON_PLUGINS": "Entry points of the vendors' plugins to load, by name: `nvidia,sim`; all by default.",
    "GLUON_NO_JIT": "`1`: a launch that would compile is an error that names the change.",
    "GLUON_COMPILE_ISOLATION": "`0`: compile in this process, not in a child that an abort may end.",
    "GLUON_COMPILE_TIMEOUT": "Seconds after which a stage of the compiler is ended; 600.",
    "GLUON_COMPILE_WORKERS": "How many processes `gluon.compile_many` and the configurations of `triton.autotune` are compiled in; the number of cores.",
    "GLUON_DRIVER": "The driver that launches the kernels of bundles: `cuda`, `hip` or an emulated device such as `emu:sm_90`; the first "
    "that has a device by default.",
    "GLUON_BUNDLE": "Bundles, as in `PATH`: launches take from them the kernels that they would compile.",
    "GLUON_TIMELINE": "`1`: record the timelines of this process and write them to a page at its end; `auto`: with "
    "automatic scopes.",
    "GLUON_TIMELINE_DIR": "The folder for the pages of GLUON_TIMELINE; the current one.",
    "GLUON_TUNE_STORE": "The file in which `gluon tune` keeps its results, and that launches with "
    '`config="tuned"` look into; `~/.gluon/tuned.db`.',
    "GLUON_TRACEBACK": "`full`: errors show the frames of this package and of Triton, too.",
    "GLUON_STRICT": "`0`: kernels without a setting of their own are compiled as with `strict=False`: a kernel that we refuse and Triton's "
    "Gluon compiles gives a `KernelWarning`, as [the table](../compatibility.md) says. Read when a kernel is compiled.",
    "GLUON_TORCH_DEBUG": "`1`: check each call of an operator that is made of kernels.",
    "GLUON_TORCH_SHORTCUT": "the folder of the operators' part in C++, `~/.gluon/torch` unless set; `0` neither builds nor loads it.",
}


def _settings_page() -> str:
    out = ["# Settings\n", "Variables of the environment.\n", "| variable | |\n| --- | --- |"]
    out += [f"| `{name}` | {text} |" for name, text in SETTINGS.items()]
    for module, prefix, title in (
        ("gluon_sim.settings", "GLUON_SIM_", "The simulator"),
        ("gluon_emu.settings", "GLUON_EMU_", "The emulator"),
    ):
        cls = __import__(module, fromlist=["Settings"]).Settings
        texts = _args(inspect.getdoc(cls) or "")
        out.append(f"\n## {title}\n\nAlso keyword arguments of a launch.\n")
        out.append("| variable | argument | default | |\n| --- | --- | --- | --- |")
        every = "every check that is not switched by its own name"
        out.append(f"| `{prefix}CHECKS` | `checks` | `True` | {every} |")
        for one in fields(cls):
            default = f"`{one.default!r}`"
            text = texts.get(one.name, "")
            out.append(f"| `{prefix}{one.name.upper()}` | `{one.name}` | {default} | {text} |")
    return "\n".join(out) + "\n"


def _args(text: str) -> dict[str, str]:
    """Name -> text of the `Args:` of a docstring."""
    pages: dict[str, str] = {}
    names: list[str] = []
    for line in text.partition("Args:")[2].splitlines():
        item = re.match(r"    ([\w, ]+): (.*)", line)
        if item:
            names = [name.strip() for name in item[1].split(",")]
        for name in names:
            pages[name] = f"{pages.get(name, '')} {item[2] if item else line.strip()}".strip()
    return pages


def _index_page() -> str:
    rows = [f"| [{title}]({page}.md) | {lead} |" for page, (title, lead, _) in PAGES.items()]
    rows += [f"| [gl.{vendor}]({vendor}.md) | The features of one vendor. |" for vendor in VENDORS]
    rows.append(
        "| [Error classes](errors.md) | The smallest program that raises each, and its fix. |"
    )
    rows.append("| [The command line](cli.md) | `gluon ...` |")
    rows.append("| [Settings](settings.md) | Variables of the environment. |")
    listed = []
    where = {n: page for page, (_, _, stems) in PAGES.items() for n in _names(stems)}
    for name in sorted(where, key=str.lower):
        shown = name if is_host(name) else f"gl.{name}"
        listed.append(f"[`{shown}`](#{anchor(name)})")
    return (
        "# Reference\n\nGenerated from the language itself. Every example ran on the simulator, and shows "
        "its output.\n\n| page | |\n| --- | --- |\n"
        + "\n".join(rows)
        + "\n\n## All names\n\n"
        + ", ".join(listed)
        + "\n\n```{toctree}\n:hidden:\n\n"
        + "\n".join([*PAGES, *VENDORS, "errors", "cli", "settings"])
        + "\n```\n"
    )


def _names(stems: Iterable[str]) -> list[str]:
    files = (sections.FOLDER / f"{stem}.py" for stem in stems)
    return [name for file in files for s in shown_sections(file) for name in s.names]


@functools.cache
def pages() -> Mapping[str, str]:
    """Return the Markdown of each page by its path below docs/."""
    pages = {f"reference/{name}.md": _examples_page(*page) for name, page in PAGES.items()}
    pages |= {f"reference/{vendor}.md": _vendor_page(vendor) for vendor in VENDORS}
    pages["reference/cli.md"] = _cli_page()
    pages["reference/errors.md"] = mistakes.page()
    pages["reference/settings.md"] = _settings_page()
    pages["reference/index.md"] = _index_page()
    return pages


if __name__ == "__main__":
    for path, text in pages().items():
        print(path, len(text))
    print("without an example:", *missing(), *missing("nvidia"), *missing("amd"))
