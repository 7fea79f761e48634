"""Sealed pieces: complete ones count, all others are made again."""

import pytest

from stages.engines.pieces import are_whole, remove_piece, seal


def cut(file):
    file.write_bytes(file.read_bytes()[:-1])


def flip(file):
    content = bytearray(file.read_bytes())
    content[3] ^= 1
    file.write_bytes(bytes(content))


def lose(file):
    file.unlink()


@pytest.fixture(params=["file", "folder"])
def piece(request, tmp_path):
    """Returns a piece and the file in it that is damaged."""
    if request.param == "file":
        (tmp_path / "piece.json").write_text("[1, 2]")
        return tmp_path / "piece.json", tmp_path / "piece.json"
    (tmp_path / "piece").mkdir()
    for name in ("weights", "config"):
        (tmp_path / "piece" / name).write_text("[1, 2]")
    return tmp_path / "piece", tmp_path / "piece" / "weights"


def test_a_sealed_piece_counts_until_it_is_removed(piece, tmp_path, capfd):
    assert not are_whole(tmp_path / "other")
    seal(piece[0])
    assert are_whole(piece[0]) and "WARNING" not in "".join(capfd.readouterr())
    remove_piece(piece[0])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", [cut, flip, lose])
def test_a_damaged_piece_does_not_count_and_is_removed(piece, damage, tmp_path, capfd):
    seal(piece[0])
    damage(piece[1])
    assert not are_whole(piece[0]) and list(tmp_path.iterdir()) == []
    warned = "has changed since it was written" in "".join(capfd.readouterr())
    assert warned == (damage is not lose or piece[0] != piece[1])


def test_a_piece_that_was_not_sealed_does_not_count(piece, tmp_path):
    assert not are_whole(piece[0]) and list(tmp_path.iterdir()) == []


def test_several_pieces_count_together(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    for file in (one, other):
        file.write_text("text")
    seal(one, other)
    assert are_whole(one, other)
    lose(other)
    assert not are_whole(one, other) and not one.exists()
