"""The language server: hover, inlay hints, code lenses and errors of kernels.

A file is analysed when it is opened and saved: a process of its own runs it on the simulator, as `gluon hints` does, and is ended after a
time. Between two analyses hints keep to the lines that did not change.

Source: Language Server Protocol 3.17 (textDocument/hover, inlayHint, codeLens, publishDiagnostics), by pygls.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Optional

from lsprotocol import types
from pygls.lsp.server import LanguageServer
from pygls.uris import to_fs_path

from gluon_core._version import __version__
from gluon_report.editor.analysis import Analysis, Problem, analysed
from gluon_report.editor.document import Document
from gluon_report.inlay import Hint

__all__ = ["serve", "server"]

_NAME = "gluon"
_MARK = "gluon"  # a file without this word has no kernels


class Server:
    """The analyses of documents, and the connection to their editor.

    Args:
        target: whose layouts are shown; None: the simulator's own.
        patience: seconds that a file may run.
    """

    def __init__(self, target: Optional[str], patience: float):
        self.connection: Any = LanguageServer(_NAME, __version__)
        self.target = target
        self.patience = patience
        self._analyses: dict[str, Analysis] = {}
        self._running: dict[str, asyncio.Task[None]] = {}

    def analyse(self, uri: str) -> None:
        """Begin to analyse a document; an analysis of it that runs is cancelled."""
        self.forget(uri, keep=True)
        path = to_fs_path(uri)
        if path is None or not Path(path).is_file():
            return
        if _MARK in self.connection.workspace.get_text_document(uri).source:
            self._running[uri] = asyncio.ensure_future(self._analyse(uri, Path(path)))

    def forget(self, uri: str, keep: bool = False) -> None:
        """Cancel the analysis of a document, and drop its hints unless `keep` is set."""
        task = self._running.pop(uri, None)
        if task is not None:
            task.cancel()
        if not keep:
            self._analyses.pop(uri, None)

    async def _analyse(self, uri: str, path: Path) -> None:
        try:
            analysis = await analysed(path, self.target, self.patience)
        except OSError as error:  # the file is gone, or no process can be started
            analysis = Analysis("", problem=Problem(f"not analysed: {error}"))
        before = self._analyses.get(uri)
        if analysis.problem is not None and not analysis.named and before is not None:  # they stay
            analysis = Analysis(before.text, before.named, analysis.problem)
        self._analyses[uri] = analysis
        self._report(uri, analysis.problem)
        workspace = self.connection.client_capabilities.workspace
        if workspace and workspace.inlay_hint and workspace.inlay_hint.refresh_support:
            self.connection.workspace_inlay_hint_refresh(None)
        if workspace and workspace.code_lens and workspace.code_lens.refresh_support:
            self.connection.workspace_code_lens_refresh(None)

    def _report(self, uri: str, problem: Optional[Problem]) -> None:
        problems = []
        if problem is not None and problem.wrong:
            place = types.Position(problem.line, problem.column)
            end = types.Position(problem.line, problem.column + 1)
            problems.append(
                types.Diagnostic(types.Range(place, end), problem.message, types.DiagnosticSeverity.Error, source=_NAME)
            )  # fmt: skip
        elif problem is not None:
            text = f"{uri}: {problem.message}"
            self.connection.window_log_message(types.LogMessageParams(types.MessageType.Info, text))
        self.connection.text_document_publish_diagnostics(
            types.PublishDiagnosticsParams(uri, problems)
        )

    def document(self, uri: str) -> Optional[Document]:
        """Return the hints of a document; None before its first analysis has ended."""
        analysis = self._analyses.get(uri)
        if analysis is None:
            return None
        return Document(
            analysis, self.connection.workspace.get_text_document(uri).source.replace("\r\n", "\n")
        )

    def client_position(self, uri: str, line: int, column: int) -> types.Position:
        """Return a place, counted in characters, in the units of the client."""
        text = self.connection.workspace.get_text_document(uri)
        return text.position_codec.position_to_client_units(
            text.lines, types.Position(line, column)
        )


def server(target: Optional[str], patience: float) -> Server:
    """Return a server that has not started."""
    ls = Server(target, patience)

    def opened(params: types.DidOpenTextDocumentParams) -> None:
        ls.analyse(params.text_document.uri)

    def saved(params: types.DidSaveTextDocumentParams) -> None:
        ls.analyse(params.text_document.uri)

    def closed(params: types.DidCloseTextDocumentParams) -> None:
        ls.forget(params.text_document.uri)

    def hover(params: types.HoverParams) -> Optional[types.Hover]:
        uri = params.text_document.uri
        document = ls.document(uri)
        if document is None:
            return None
        text = ls.connection.workspace.get_text_document(uri)
        place = text.position_codec.position_from_client_units(text.lines, params.position)
        named = document.at(place.line, place.character)
        word = document.word(place.line, place.character)
        if named is None or word is None:
            return None
        where = types.Range(
            ls.client_position(uri, place.line, word[1]), ls.client_position(uri, place.line, word[2])
        )  # fmt: skip
        return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, _described(named)), where)

    def inlay_hints(params: types.InlayHintParams) -> list[types.InlayHint]:
        uri = params.text_document.uri
        document = ls.document(uri)
        first, last = params.range.start.line, params.range.end.line
        return [
            types.InlayHint(
                ls.client_position(uri, named.line, named.column), f": {named.label}",
                types.InlayHintKind.Type, tooltip="\n".join(named.layouts) or None,
            )
            for named in (document.named if document else ())
            if first <= named.line <= last
        ]  # fmt: skip

    def code_lenses(params: types.CodeLensParams) -> list[types.CodeLens]:
        document = ls.document(params.text_document.uri)
        lenses = []
        for line, values in document.choices() if document else ():
            start = types.Position(line, 0)
            for named in values:
                title = f"{named.name}: {'; '.join(named.layouts)}"
                lenses.append(types.CodeLens(types.Range(start, start), types.Command(title, "")))
        return lenses

    ls.connection.feature(types.TEXT_DOCUMENT_DID_OPEN)(opened)
    ls.connection.feature(types.TEXT_DOCUMENT_DID_SAVE)(saved)
    ls.connection.feature(types.TEXT_DOCUMENT_DID_CLOSE)(closed)
    ls.connection.feature(types.TEXT_DOCUMENT_HOVER)(hover)
    ls.connection.feature(types.TEXT_DOCUMENT_INLAY_HINT)(inlay_hints)
    ls.connection.feature(types.TEXT_DOCUMENT_CODE_LENS)(code_lenses)
    return ls


def _described(named: Hint) -> str:
    lines = [f"`{named.name}: {named.label}`"]
    how = ", chosen" if named.chosen else ""
    lines += [f"layout{how}: `{layout}`" for layout in named.layouts]
    return "\n\n".join(lines)


def serve(target: Optional[str], patience: float) -> None:
    """Serve an editor on standard input and output until it says goodbye."""
    server(target, patience).connection.start_io()
