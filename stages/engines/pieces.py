"""Pieces of finished work in a scratch folder, sealed with their hash: a resumed run uses what is whole, and no other.

A piece is a file or a folder. Its seal is a file beside it, written after it. A piece counts as not made if it was
lost, cut or changed, or if its run was killed before the seal. Its maker makes it again, with the same result. Data
that only a checkpoint can restore belongs in the checkpoint's manifest (stages/engines/trainers/checkpoints.py).
"""

from __future__ import annotations

import shutil
from pathlib import Path

from stages.foundations.files import dvc_md5, write_text_atomically
from stages.observe.progress import say


def seal(*pieces: Path) -> None:
    """Marks pieces as whole; all must be there."""
    # DVC's hash, because it is defined for folders too.
    for piece in pieces:
        write_text_atomically(_seal_of(piece), dvc_md5(piece))


def are_whole(*pieces: Path) -> bool:
    """Whether all pieces are what was sealed. Otherwise removes them, and warns of one that has changed since."""
    if all(_is_whole(piece) for piece in pieces):
        return True
    # All of them, also the whole ones: pieces that were sealed together are used together.
    for piece in pieces:
        remove_piece(piece)
    return False


def remove_piece(piece: Path) -> None:
    """Removes a piece and its seal; nothing happens where there is none."""
    # The seal first: what a killed process leaves without one does not count.
    _seal_of(piece).unlink(missing_ok=True)
    if piece.is_dir():
        shutil.rmtree(piece)
    else:
        piece.unlink(missing_ok=True)


def _is_whole(piece: Path) -> bool:
    if not (piece.exists() and _seal_of(piece).exists()):
        return False
    is_whole = _seal_of(piece).read_bytes() == dvc_md5(piece).encode()
    if not is_whole:
        say(f"WARNING: {piece} has changed since it was written, so it is not used: its work is done again")
    return is_whole


def _seal_of(piece: Path) -> Path:
    return piece.with_name(f"{piece.name}.seal")
