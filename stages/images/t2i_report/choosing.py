"""Chooses the shown pictures by rules that the page states, and embeds them: small, within a total limit."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy
import pandas
from markupsafe import Markup
from PIL import Image

from stages.foundations.errors import UserError
from stages.images.algorithms.shape_world import KINDS, scene_of
from stages.images.engines.pictures.shards import pixels_of, png_of
from stages.images.t2i_report.findings import CHARACTERS, LEARNT, PicturesRun, RankedRound
from stages.pages.page import html, paragraph, visible_text


@dataclass(frozen=True)
class Shown:
    """One picture with its words."""

    image: str
    """Its name among the page's pictures."""
    label: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Strip:
    """Pictures of one prompt, side by side."""

    prompt: str
    note: str
    pictures: tuple[Shown, ...]


def best_and_worst(ranked: RankedRound, count: int) -> list[Strip]:
    """Returns the pictures of a prompt that people, and the reward model, like best and least.

    For `count` held-out prompts, as `spread_over_kinds` selects them. People's measure is the share of its pairs that a
    picture won; among equals the smaller image id comes first.
    """
    if LEARNT not in ranked.scores:
        return []
    prompts = ranked.images.drop_duplicates("prompt_id").set_index("prompt_id")["prompt"]
    strips = []
    for prompt_id in spread_over_kinds(prompts[ranked.pairs["prompt_id"].unique()].to_dict(), count):
        pairs = ranked.pairs[ranked.pairs["prompt_id"] == prompt_id]
        rewards, won = ranked.scores[LEARNT], wins(pairs)
        # Sorted by id, so that `idxmax` and `idxmin` take the smaller id of equals.
        table = pandas.DataFrame({"won": won, "reward": rewards.reindex(won.index)}).sort_index()

        # The table is bound as a default, because the loop changes the variable.
        def shown(label: str, image: str, table: pandas.DataFrame = table) -> Shown:
            row = table.loc[image]
            return Shown(image, label, (f"won {100 * row['won']:.0f}%", f"reward {row['reward']:.2f}"))

        strips.append(
            Strip(
                ranked.images.loc[table.index[0], "prompt"],
                f"{len(table)} pictures, {len(pairs)} pairs",
                (
                    shown("best by people", table["won"].idxmax()),
                    shown("best by the model", table["reward"].idxmax()),
                    shown("worst by people", table["won"].idxmin()),
                    shown("worst by the model", table["reward"].idxmin()),
                ),
            )
        )
    return strips


def spread_over_kinds(prompts: Mapping[str, str], count: int) -> list[str]:
    """Returns ids of `count` prompts, or all: the kinds of the shape world in turn, easy ones first; others are one
    kind.

    Within a kind, the prompt with the largest share of words not shown yet: the first ones by hash were all of one
    colour. Among equals the smaller id. `prompts` has the text of each id.
    """
    of_kind: dict[str, list[str]] = {kind: [] for kind in (*KINDS, "")}
    for prompt_id in sorted(prompts):
        scene = scene_of(prompts[prompt_id])
        of_kind[scene.kind if scene else ""].append(prompt_id)
    chosen: list[str] = []
    shown: set[str] = set()

    def share_of_new_words(prompt_id: str) -> float:
        words = set(prompts[prompt_id].casefold().split())
        return len(words - shown) / max(len(words), 1)

    while len(chosen) < min(count, len(prompts)):
        for ids in filter(None, of_kind.values()):
            # `max` takes the first of equals, and the ids are sorted.
            chosen.append(max(ids, key=share_of_new_words))
            ids.remove(chosen[-1])
            shown |= set(prompts[chosen[-1]].casefold().split())
    return chosen[:count]


def disagreements(ranked: RankedRound, count: int) -> list[Strip]:
    """Returns pairs that the reward model orders against people with the widest margins, at most one per prompt.

    Only pairs that more annotators order one way than the other; among equal margins the smaller ids come first.
    """
    if LEARNT not in ranked.scores or ranked.pairs.empty:
        return []
    sides = ["better_image_id", "worse_image_id"]
    votes = ranked.pairs.groupby(["prompt_id", *sides], as_index=False)["weight"].sum()
    # The same pairs in reverse: how many annotators said the opposite.
    other = votes.rename(columns={"better_image_id": sides[1], "worse_image_id": sides[0], "weight": "against"})
    votes = votes.merge(other, on=["prompt_id", *sides], how="left").fillna({"against": 0.0})
    rewards = ranked.scores[LEARNT]
    votes["margin"] = rewards.reindex(votes[sides[1]]).to_numpy() - rewards.reindex(votes[sides[0]]).to_numpy()
    wrong = votes[(votes["weight"] > votes["against"]) & (votes["margin"] > 0)]
    # One per prompt: or a single odd picture would fill the strip.
    wrong = wrong.sort_values(["margin", *sides], ascending=[False, True, True]).drop_duplicates("prompt_id")
    return [
        Strip(
            ranked.images.loc[row.better_image_id, "prompt"],
            f"{row.weight:g} against {row.against:g} votes; margin {row.margin:.2f}",
            tuple(
                Shown(image, label, (f"reward {rewards[image]:.2f}", *_truth(ranked.scores, image)))
                for label, image in (
                    ("people prefer", row.better_image_id),
                    ("the reward model prefers", row.worse_image_id),
                )
            ),
        )
        for row in wrong.head(count).itertuples()
    ]


def changes(name: str, pictures: pandas.DataFrame, count: int) -> dict[str, list[Strip]]:
    """Returns pictures before and after feedback from the same noise, by why they are shown: gain, middle, loss.

    `pictures` is the `feedback_image` table of round `name`. Largest changes first, the middle in its order.
    """
    judge = judge_of(pictures)
    shown = pictures.assign(change=pictures[f"{judge}_after"] - pictures[f"{judge}_before"])
    parts = {
        "gain": shown[shown["shown_for"] == "gain"].sort_values("change", ascending=False, kind="stable"),
        "middle": shown[shown["shown_for"] == "middle"],
        "loss": shown[shown["shown_for"] == "loss"].sort_values("change", kind="stable"),
    }
    return {
        reason: [_change(name, row, judge) for row in part.head(count).to_dict("records")]
        for reason, part in parts.items()
        if len(part) and count
    }


def change_pictures(name: str, pictures: pandas.DataFrame) -> dict[str, bytes]:
    """Returns the PNG of all pictures that a table of feedback has kept, by the name that `changes` gives them."""
    # The others have no PNG: a table of all test pictures would be large without being used.
    kept = pictures[pictures["shown_for"] != ""]
    return {
        _image(name, row, when): row[f"png_{when}"] for row in kept.to_dict("records") for when in ("before", "after")
    }


def judge_of(pictures: pandas.DataFrame) -> str:
    """Returns the quantity that selected the table's pictures: the truth, or the held-out score if it is unknown."""
    return "truth" if pictures["truth_after"].notna().any() else "held_out"


def wins(pairs: pandas.DataFrame) -> pandas.Series:
    """Returns the share of its pairs that each image won, by weight; by image id."""
    won = pairs.groupby("better_image_id")["weight"].sum()
    lost = pairs.groupby("worse_image_id")["weight"].sum()
    return won.div(won.add(lost, fill_value=0.0), fill_value=0.0)


def _truth(scores: pandas.DataFrame, image: str) -> tuple[str, ...]:
    return (f"truth {scores.loc[image, 'truth']:.2f}",) if "truth" in scores else ()


def _image(name: str, row: dict[str, object], when: str) -> str:
    return f"{name}/{row['prompt_id']}/{row['seed']}/{when}"


def _change(name: str, row: dict[str, object], judge: str) -> Strip:
    return Strip(
        row["prompt"],
        f"{judge.replace('_', '-')} score {row['change']:+.2f}",
        tuple(
            Shown(
                _image(name, row, when),
                when,
                (f"{judge.replace('_', '-')} {row[f'{judge}_{when}']:.2f}", f"reward {row[f'reward_{when}']:.2f}"),
            )
            for when in ("before", "after")
        ),
    )


# Smaller pictures show nothing; section `t2i_report` requires at least this.
LEAST_SIDE = 16


@dataclass(frozen=True)
class Embedded:
    """A picture in its form on the page."""

    uri: str
    width: int
    height: int
    is_small: bool
    """Its pixels are unchanged: the page enlarges them without blurring."""


def embed(pngs: Mapping[str, bytes], side: int, most_mib: float) -> dict[str, Embedded]:
    """Returns each picture as a data URI, its longest side at most `side` pixels, less if all would exceed the limit.

    UserError when they exceed it at 16 pixels.
    """
    while True:
        scaled = {name: _scaled(png, side) for name, png in pngs.items()}
        total = sum(len(png) for png, *_ in scaled.values())
        if total <= most_mib * 2**20:
            uri = "data:image/png;base64,{}".format
            return {name: Embedded(uri(base64.b64encode(png).decode()), *look) for name, (png, *look) in scaled.items()}
        if side == LEAST_SIDE:
            raise UserError(
                f"{len(pngs)} pictures are {total / 2**20:.1f} MiB at {side} pixels: show fewer (t2i_report.shown_*), "
                "or raise t2i_report.max_pictures_mib"
            )
        # About half the bytes. Scaled again from the originals, because each scaling blurs.
        side = max(LEAST_SIDE, side * 3 // 4)


def _scaled(png: bytes, side: int) -> tuple[bytes, int, int, bool]:
    """Returns the picture, its width and height, and whether it is unchanged."""
    pixels = pixels_of(png)
    height, width, _ = pixels.shape
    # Small ones keep their pixels, which the page enlarges without blurring.
    if max(height, width) <= side:
        return png, width, height, True
    scale = side / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return png_of(numpy.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.LANCZOS))), *size, False


class Gallery:
    """All pictures of the page by the rules above, embedded together because they share one limit."""

    def __init__(self, run: PicturesRun) -> None:
        most = run.report
        self.best_and_worst = {one.name: best_and_worst(one, most.shown_prompts) for one in run.ranked}
        self.disagreements = {one.name: disagreements(one, most.shown_disagreements) for one in run.ranked}
        self.changes = {name: changes(name, table, most.shown_changes) for name, table in run.pictures.items()}
        pngs: dict[str, bytes] = {}
        for ranked in run.ranked:
            # Only shown pictures are read completely: a pool has tens of thousands.
            pngs |= ranked.pictures(_images(self.best_and_worst[ranked.name] + self.disagreements[ranked.name]))
        for name, table in run.pictures.items():
            wanted = _images([strip for strips in self.changes[name].values() for strip in strips])
            pngs |= {image: png for image, png in change_pictures(name, table).items() if image in wanted}
        self._embedded = embed(pngs, most.picture_side, most.max_pictures_mib)

    def show(self, strips: Sequence[Strip]) -> Markup:
        """Shows the pictures of each prompt side by side, with their words; the prompt is their text for the blind."""
        return html('<div class="strips">\n{}</div>\n', [self._strip(strip) for strip in strips])

    def _strip(self, strip: Strip) -> Markup:
        prompt = visible_text(strip.prompt, CHARACTERS)
        figures = [
            html(
                '<figure><img{} src="{}" width="{}" height="{}" alt="{}"><figcaption>{}{}</figcaption></figure>\n',
                Markup(' class="pixels"') if own.is_small else "",
                *(own.uri, own.width, own.height, prompt, picture.label),
                [html("<span>{}</span>", line) for line in picture.lines],
            )
            for picture, own in ((picture, self._embedded[picture.image]) for picture in strip.pictures)
        ]
        return html(
            '<article class="strip">\n<h4 dir="auto">{}</h4>\n{}<div class="pictures">\n{}</div>\n</article>\n',
            *(prompt, paragraph("{}", strip.note, kind="quiet"), figures),
        )


def _images(strips: Sequence[Strip]) -> set[str]:
    return {picture.image for strip in strips for picture in strip.pictures}
