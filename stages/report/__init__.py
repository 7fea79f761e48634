"""Stage `report`: one self-contained HTML page about a run; equal inputs give equal bytes."""
