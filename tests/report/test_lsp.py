"""`gluon lsp`, driven by a client of the protocol over standard input and output."""

import asyncio
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("pygls")
from lsprotocol import types  # noqa: E402
from pygls.lsp.client import LanguageClient  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

from gluon_cli.app import app  # noqa: E402

pytestmark = pytest.mark.once

KERNEL = """
import numpy as np
import gluon_core as gluon
from gluon_core import language as gl

@gluon.jit(layouts="auto")
def double(x, BLOCK: gl.constexpr):
    index = gl.arange(0, BLOCK)
    größe = gl.load(x + index)  # a name that takes more bytes than characters
    total = 2 * größe
    gl.store(x + index, total)

double[(1,)](np.ones(256, np.float32), 256)
"""
WRONG = KERNEL.replace("2 * größe", "2 * missing")
ENDLESS = "import gluon_core\nwhile True:\n    pass\n"


class Editor:
    """A client with one open file."""

    def __init__(self):
        self.client = LanguageClient("editor", "1")
        self.diagnostics, self.messages = [], []

        @self.client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
        def published(params):
            self.diagnostics.append(params)

        @self.client.feature(types.WINDOW_LOG_MESSAGE)
        def logged(params):
            self.messages.append(params)

    async def open(self, path, *options):
        await self.client.start_io(
            sys.executable, "-m", "gluon_cli", "lsp", "--stdio", "--target", "sm_90", *options
        )
        answer = await self.client.initialize_async(
            types.InitializeParams(capabilities=types.ClientCapabilities(), root_uri=path.parent.as_uri())
        )  # fmt: skip
        assert answer.capabilities.hover_provider and answer.capabilities.inlay_hint_provider
        self.client.initialized(types.InitializedParams())
        self.path, self.version = path, 1
        self.document = types.TextDocumentIdentifier(path.as_uri())
        item = types.TextDocumentItem(path.as_uri(), "python", 1, path.read_text())
        self.client.text_document_did_open(types.DidOpenTextDocumentParams(item))
        await self.analysed(1)

    async def analysed(self, count):
        deadline = time.monotonic() + 60
        while len(self.diagnostics) < count:
            assert time.monotonic() < deadline, self.messages
            await asyncio.sleep(0.05)

    def change(self, text):
        self.version += 1
        place = types.VersionedTextDocumentIdentifier(self.version, self.document.uri)
        whole = [types.TextDocumentContentChangeWholeDocument(text)]
        self.client.text_document_did_change(types.DidChangeTextDocumentParams(place, whole))

    async def save(self, text):
        self.change(text)
        self.path.write_text(text)
        count = len(self.diagnostics)
        self.client.text_document_did_save(types.DidSaveTextDocumentParams(self.document))
        await self.analysed(count + 1)

    async def hover(self, line, column):
        params = types.HoverParams(self.document, types.Position(line, column))
        answer = await self.client.text_document_hover_async(params)
        return answer and answer.contents.value

    async def hints(self, last=1000):
        whole = types.Range(types.Position(0, 0), types.Position(last, 0))
        params = types.InlayHintParams(self.document, whole)
        return await self.client.text_document_inlay_hint_async(params)

    async def lenses(self):
        return await self.client.text_document_code_lens_async(types.CodeLensParams(self.document))

    async def close(self):
        await self.client.shutdown_async(None)
        self.client.exit(None)
        await asyncio.wait_for(self.client._server.wait(), 20)
        await self.client.stop()


def edit(path, session, *options):
    async def run():
        editor = Editor()
        try:
            await editor.open(path, *options)
            await session(editor)
        finally:
            await editor.close()

    asyncio.run(run())


def place(text, word, start=0):
    offset = text.index(word, start)
    before = text[:offset].split("\n")
    return len(before) - 1, len(before[-1])


def test_a_file_is_opened_edited_broken_and_fixed(tmp_path):
    path = tmp_path / "kernel.py"
    path.write_text(KERNEL)

    async def session(editor):
        use = place(KERNEL, "größe\n")
        shown = await editor.hover(use[0], use[1] + 3)
        assert shown.startswith("`größe: fp32[256]`") and "layout, chosen: `BlockedLayout(" in shown
        assert await editor.hover(*place(KERNEL, "import")) is None
        hints = {hint.position.line: hint for hint in await editor.hints()}
        line, column = place(KERNEL, "größe")
        assert hints[line].label == ": fp32[256]" and hints[line].position.character == column + 5
        assert "BlockedLayout(" in hints[line].tooltip
        assert all(hint.position.line <= line for hint in await editor.hints(line))
        lenses = await editor.lenses()
        assert [lens.range.start.line for lens in lenses] == [place(KERNEL, "index =")[0]]
        assert lenses[0].command.title.startswith("index: BlockedLayout(")
        # Lines that move take their hints along; a line that changes has none until it is saved.
        longer = KERNEL.replace("    total", "    # one more line\n    total").replace(
            "arange(0,", "arange( 0,"
        )
        editor.change(longer)
        moved = {hint.position.line for hint in await editor.hints()}
        assert place(longer, "total =")[0] in moved and place(longer, "index =")[0] not in moved
        await editor.save(WRONG)
        (problem,) = editor.diagnostics[-1].diagnostics
        assert "'missing' is not defined" in problem.message
        assert (problem.range.start.line, problem.range.start.character) == place(WRONG, "missing")
        assert "größe: fp32[256]" in await editor.hover(*place(WRONG, "größe"))
        await editor.save(KERNEL)
        assert not editor.diagnostics[-1].diagnostics
        # A mistake in a later launch: the kernels before it keep their hints.
        second = KERNEL.replace("double", "triple")
        await editor.save(KERNEL + second.replace("2 * größe", "gl.arange(0, 2 * BLOCK)"))
        (problem,) = editor.diagnostics[-1].diagnostics
        assert "expected [256], got [512]" in problem.message
        assert await editor.hints(len(KERNEL.split("\n")))

    edit(path, session)


def test_a_file_that_never_ends_is_ended(tmp_path):
    path = tmp_path / "endless.py"
    path.write_text(ENDLESS)

    async def session(editor):
        assert not editor.diagnostics[-1].diagnostics and not await editor.hints()
        assert "longer than 1 seconds" in editor.messages[-1].message
        for broken in ("import gluon_core\ndef f(:\n", "import gluon_core\nraise SystemExit(3)\n"):
            await editor.save(broken)
            assert "not analysed" in editor.messages[-1].message and not await editor.hints()

    edit(path, session, "--patience", "1")


@pytest.mark.campaign("one more server; test_hints.py has shapes of functions that are called")
def test_a_tutorial_shows_its_shapes():
    path = Path(__file__).parents[2] / "examples" / "tutorials" / "step09_pipeline.py"

    async def session(editor):
        text = path.read_text()
        tile = place(text, "left = gl.allocate")
        shown = await editor.hover(*tile)
        assert "left: fp16[4, 128, 64] in shared memory" in shown and "NVMMASharedLayout" in shown
        # The parameter of another function has the type that it is called with.
        assert "left: fp16[128, 64] in shared memory" in await editor.hover(
            *place(text, "left, pred=pred")
        )
        assert {hint.position.line for hint in await editor.hints()} >= {tile[0]}
        assert not await editor.lenses()  # its layouts are those of the source

    edit(path, session)


def test_an_unknown_target_ends_the_command():
    result = CliRunner().invoke(app, ["lsp", "--target", "sm_9O"])
    assert result.exit_code == 2 and "unknown target 'sm_9O'. Did you mean 'sm_90'" in result.stderr
