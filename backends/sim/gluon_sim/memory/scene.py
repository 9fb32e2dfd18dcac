"""A task's wait at a barrier, in words: cells of a table, and a part of a sentence."""

from __future__ import annotations

from typing import Any

__all__ = ["cells", "circle", "in_words", "table"]


def table(rows: list[tuple[str, ...]]) -> list[str]:
    """Lines of cells under each other."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join(c.ljust(w) for c, w in zip(row, widths)).rstrip() for row in rows]


def cells(scene: dict[str, Any]) -> tuple[str, str, str]:
    """Return the wait of a task, the missing arrivals, and the past events there, for a table."""
    waits = f"phase {scene['phase']} of {scene['where']} in program {scene['program']}"
    missing = _missing(scene)
    far = [f"{scene['completed']} phases completed"]
    known = ", ".join(map(str, scene["arrived"]))
    far.append(f"arrivals at line {known}" if known else "nobody has arrived yet")
    if not known and not scene["candidates"] and scene["used"]:
        far.append("no line arrives there")
    if scene["bytes"]:
        far.append(f"it{scene['bytes']}")
    if scene["candidates"]:
        far.append(f"line {', '.join(map(str, scene['candidates']))} could arrive but did not")
    return waits, missing, ", ".join(far)


def _missing(scene: dict[str, Any]) -> str:
    """Return how many arrivals and bytes a phase lacks."""
    some = 0 < scene["pending"] < scene["count"]
    arrivals = f"{scene['pending']} of {scene['count']}" if some else scene["pending"]
    if scene["size"] < 0:
        return f"{arrivals} arrivals missing, and {-scene['size']} bytes came that nobody expects"
    return f"{arrivals} arrivals and {scene['size']} bytes missing"


def circle(scenes: list[dict[str, Any]]) -> list[str]:
    """Return the task that may begin where all wait for a first phase that another of them could complete."""
    first = [
        scene
        for scene in scenes
        if scene and not (scene["completed"] or scene["phase"] or scene["arrived"])
    ]
    if len(first) < 2 or len(first) < len(scenes) or not all(s["candidates"] for s in first):
        return []
    return [
        "Each waits for the other. The one that begins waits for phase 1, the one before the first, which is "
        "over from the start."
    ]


def in_words(scene: dict[str, Any]) -> str:
    """Return a scene as part of a sentence."""
    text = (
        f"phase {scene['phase']} of {scene['where']} in program {scene['program']}: {_missing(scene)}, "
        f"{scene['completed']} phases completed"
    )
    if scene["arrived"]:
        text += f", arrivals so far at line {', '.join(map(str, scene['arrived']))}"
    else:
        text += ", nobody has arrived yet"
    if scene["bytes"]:
        text += f", it{scene['bytes']}"
    if scene["candidates"]:
        text += f", line {', '.join(map(str, scene['candidates']))} could but did not"
    return text
