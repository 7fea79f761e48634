"""Pages whose formulas are written as generators of the web write them, with the texts that a reader must return.

Every construction has one page in each layout. `scores` compares what was read with the texts.
"""

import html
import re
from collections import Counter
from urllib.parse import quote, quote_plus

from tests.fakes.web_pages import extracted

MATHML = 'xmlns="http://www.w3.org/1998/Math/MathML"'
FORMULAS = {
    "x^2+5x=0": "<msup><mi>x</mi><mn>2</mn></msup><mo>+</mo><mn>5</mn><mi>x</mi><mo>=</mo><mn>0</mn>",
    r"\frac{1}{2}": "<mfrac><mn>1</mn><mn>2</mn></mfrac>",
    "x<3": "<mi>x</mi><mo>&lt;</mo><mn>3</mn>",
    "a_1+a_2": "<msub><mi>a</mi><mn>1</mn></msub><mo>+</mo><msub><mi>a</mi><mn>2</mn></msub>",
    r"\sqrt{n+1}": "<msqrt><mi>n</mi><mo>+</mo><mn>1</mn></msqrt>",
    "2^{10}": "<msup><mn>2</mn><mn>10</mn></msup>",
    r"\frac{x+1}{3}=4": "<mfrac><mrow><mi>x</mi><mo>+</mo><mn>1</mn></mrow><mn>3</mn></mfrac><mo>=</mo><mn>4</mn>",
    r"\alpha+\beta": "<mi>α</mi><mo>+</mo><mi>β</mi>",
    r"40\%": "<mn>40</mn><mi mathvariant='normal'>%</mi>",
    "y": "<mi>y</mi>",
}
EXERCISES = (
    ("Solve {} for all real numbers.", "The roots are 0 and -5, as {} has two factors.", 0, 0),
    ("Show that {} is between 0 and 1, and that {} holds.", "Clearly {}.", 1, 2),
    ("What is {} if {}?", "We get {}, so the answer is 7.", 3, 4),
    ("Write {} as a product.", "It is {}.", 5, 6),
    ("Let {} be an angle. Find {} of it.", "By {}.", 7, 8),
)


def math(mml: str, tex: str = "", attributes: str = "") -> str:
    note = f'<annotation encoding="application/x-tex">{html.escape(tex)}</annotation>' if tex else ""
    inner = f"<semantics><mrow>{mml}</mrow>{note}</semantics>" if tex else mml
    return f"<math {MATHML}{attributes}>{inner}</math>"


def parts_of(tex: str, mml: str) -> dict[str, str]:
    """Returns what the names in «» of CONSTRUCTIONS stand for."""
    shown = rf"{{\displaystyle {tex}}}"
    return {
        "tex": tex,
        "escaped": html.escape(tex),
        "entities": "".join(f"&#{ord(sign)};" for sign in tex),
        "for WordPress": tex.replace("\\", "&#92;").replace("<", "&lt;"),
        "quoted": quote(tex),
        "quoted twice": quote(quote(tex)),
        "quoted with plus": quote_plus(tex),
        "spaced": tex.replace("+", "&plus;").replace("=", "&space;=&space;").replace("%", "%25"),
        "shown": html.escape(shown),
        "math": math(mml),
        "math with tex": math(mml, tex),
        "math as shown": math(mml, shown, f' alttext="{html.escape(shown)}"'),
        "escaped math": html.escape(math(mml)),
        "math in MathType's signs": math(mml).translate(str.maketrans("<>\"&'", "«»¨§`")),
        # The signs of a formula, one span each, as renderers set them.
        "glyphs": "".join(f"<span>{sign}</span>" for sign in re.sub("<[^>]*>", " ", mml).split()),
    }


MATHJAX_2 = (
    '<span class="MathJax_Preview" style="color: inherit;"></span>'
    '<span class="MathJax" id="MathJax-Element-1-Frame" tabindex="0" data-mathml="«escaped math»" role="presentation">'
    '<nobr aria-hidden="true"><span class="math">«glyphs»</span></nobr>'
    '<span class="MJX_Assistive_MathML" role="presentation">«math»</span></span>'
)
KATEX = (
    '<span class="katex"><span class="katex-mathml">«math with tex»</span>'
    '<span class="katex-html" aria-hidden="true"><span class="base">«glyphs»</span></span></span>'
)
CONSTRUCTIONS = {
    "Wikipedia": '<span class="mwe-math-element">'
    '<span class="mwe-math-mathml-inline mwe-math-mathml-a11y" style="display: none;">«math as shown»</span>'
    '<img src="https://wikimedia.org/api/rest_v1/media/math/render/svg/1f2e" aria-hidden="true" '
    'class="mwe-math-fallback-image-inline mw-invert" alt="«shown»"></span>',
    "older MediaWiki": '<img class="tex" alt="«escaped»" src="//upload.wikimedia.org/math/a/b/ab12.png" />',
    "WordPress.com": '<img src="https://s0.wp.com/latex.php?latex=«quoted with plus»&#038;bg=ffffff&#038;fg=000000'
    '&#038;s=0" alt="«for WordPress»" title="«for WordPress»" class="latex" />',
    "WordPress source": "$latex «escaped»$",
    "QuickLaTeX": '<img data-src="https://x.org/wp-content/ql-cache/quicklatex.com-1f2e_l3.png" alt="«entities»" '
    'src="data:image/gif;base64,R0lGODlhAQ==" class="ql-img-inline-formula quicklatex-auto-format lazyload" '
    'title="Rendered by QuickLaTeX.com"/><noscript><img src="x.png" class="ql-img-inline-formula" '
    'alt="«entities»"></noscript>',
    "CodeCogs, editor": '<a href="https://www.codecogs.com/eqnedit.php?latex=«spaced»" target="_blank">'
    r'<img src="https://latex.codecogs.com/gif.latex?\dpi{110}&space;«spaced»" title="«escaped»" /></a>',
    "CodeCogs, address alone": r'<img src="https://latex.codecogs.com/svg.image?\inline&space;«quoted»" '
    'alt="equation">',
    "forum (AoPS)": '<img src="//latex.artofproblemsolving.com/5/f/b/5fb.png" class="latex" alt="$«escaped»$" '
    'width="9">',
    "MathJax 2, HTML-CSS": MATHJAX_2 + '<script type="math/tex" id="MathJax-Element-1">«tex»</script>',
    "MathJax 2, CommonHTML": '<span class="MathJax_Preview">«escaped»</span>'
    '<span class="mjx-chtml MathJax_CHTML" tabindex="0"><span class="mjx-math" aria-hidden="true">«glyphs»</span>'
    '<span class="MJX_Assistive_MathML">«math»</span></span><script type="math/tex">«tex»</script>',
    "MathJax 2 without scripts": MATHJAX_2,
    "MathJax 3, CHTML": '<mjx-container class="MathJax CtxtMenu_Attached_0" jax="CHTML" tabindex="0" '
    'style="position: relative;"><mjx-math class="MJX-TEX" aria-hidden="true"><mjx-mi class="mjx-i">'
    '<mjx-c class="mjx-c1D465"></mjx-c></mjx-mi></mjx-math>'
    '<mjx-assistive-mml unselectable="on" display="inline">«math»</mjx-assistive-mml></mjx-container>',
    "MathJax 3, SVG": '<mjx-container class="MathJax" jax="SVG"><svg role="img" focusable="false">'
    '<g data-mml-node="math"><path d="M0"/></g></svg><mjx-assistive-mml>«math»</mjx-assistive-mml>'
    '<span aria-hidden="true" class="no-mathjax mjx-copytext">$«escaped»$</span></mjx-container>',
    "KaTeX": KATEX,
    "KaTeX, displayed": f'<span class="katex-display">{KATEX}</span>',
    "kramdown": '<script type="math/tex">% <![CDATA[\n«tex» %]]></script>',
    "Pandoc, MathJax": r'<span class="math inline">\(«escaped»\)</span>',
    "Pandoc, KaTeX": '<span class="math inline">«escaped»</span>',
    "Pandoc, WebTeX": '<img style="vertical-align:middle" src="https://latex.codecogs.com/png.latex?«quoted»" '
    'alt="«escaped»" title="«escaped»" class="math inline" />',
    "PreTeXt": r'<span class="process-math">\(«escaped»\)</span>',
    "Moodle, TeX filter": '<span class="MathJax_Preview">'
    '<a href="https://m.org/filter/tex/displaytex.php?texexp=x" title="TeX"><img class="texrender" title="«escaped»" '
    'alt="«escaped»" src="https://m.org/filter/tex/pix.php/1f.gif"/></a></span><script type="math/tex">«tex»</script>',
    "Moodle, MathJax loader": '<span class="filter_mathjaxloader_equation">'
    r'<span class="nolink">\(«escaped»\)</span></span>',
    "Canvas": '<img class="equation_image" title="«escaped»" src="/equation_images/«quoted twice»" '
    'alt="LaTeX: «escaped»" data-equation-content="«escaped»">'
    '<span class="hidden-readable">«math»</span><span class="hidden-readable">x squared</span>',
    "Zhihu": '<img src="https://www.zhihu.com/equation?tex=«quoted with plus»" alt="«escaped»" eeimg="1"/>',
    "LaTeX2HTML": '<IMG WIDTH="20" ALIGN="MIDDLE" BORDER="0" SRC="img1.png" ALT="$«escaped»$">',
    "MathType": '<img class="Wirisformula" src="data:image/svg+xml,x" alt="a formula" '
    'data-mathml="«math in MathType\'s signs»" role="math">',
    "shortcodes": "[latex]«escaped»[/latex]",
    "comments": "\\(% as above\n«escaped» % end\n\\)",
}
"""Generator -> what it writes for a formula, by hand after what the generator emits."""


def written(construction: str, tex: str) -> str:
    parts = parts_of(tex, FORMULAS[tex])
    return re.sub("«([^»]+)»", lambda name: parts[name[1]], CONSTRUCTIONS[construction])


LAYOUTS = {
    "headings": "<h3>Exercise {0}</h3><p>{1}</p><h4>Solution</h4><p>{2}</p>",
    "flat": "<p><b>Problem {0}.</b> {1}<br></p>\n<p><i>Solution.</i> {2}</p>",
}


def page_of(construction, layout):
    """Returns a page and its pairs of (problem, solution), whose formulas are between dollar signs."""
    parts, pairs = [], []
    for number, (problem, solution, first, second) in enumerate(EXERCISES, 1):
        asked, solved = [list(FORMULAS)[first], list(FORMULAS)[second]], [list(FORMULAS)[second]]
        pairs.append(
            tuple(text.format(*(f"${tex}$" for tex in some)) for text, some in ((problem, asked), (solution, solved)))
        )
        shown = [[written(construction, tex) for tex in some] for some in (asked, solved)]
        parts.append(LAYOUTS[layout].format(number, problem.format(*shown[0]), solution.format(*shown[1])))
    share = '<div class="share-links">Share: <a href="#">F</a></div>'
    return f"<html><body><nav><a href=/>Home</a></nav><h1>Sums</h1>{''.join(parts)}{share}</body></html>", pairs


_SHOWN = re.compile(r"\$[^$]+\$|!\[[^\n]*?\]\([^()\n]*\)")


def plain(text):
    """Without blanks, without braces around one sign, with dollar signs for MathJax's: all are the same formula."""
    return re.sub(r"\{(\w)\}", r"\1", re.sub(r"\\[()]", "$", "".join((text or "").split())))


def scores(construction):
    """Returns (formulas, found, shown, texts, whole texts) of the construction's pages in all layouts."""
    total = Counter()
    for layout in LAYOUTS:
        content, pairs = page_of(construction, layout)
        wanted = [plain(text) for pair in pairs for text in pair]
        rows = {row["number"]: row for row in extracted(content)}
        read = [plain(rows.get(str(n), {}).get(part)) for n in range(1, 6) for part in ("problem", "solution")]
        for gold, text in zip(wanted, read, strict=True):
            formulas, shown = Counter(_SHOWN.findall(gold)), Counter(_SHOWN.findall(text))
            total += Counter(
                formulas=formulas.total(),
                found=(formulas & shown).total(),
                shown=shown.total(),
                texts=1,
                whole=gold == text,
            )
    return tuple(total[name] for name in ("formulas", "found", "shown", "texts", "whole"))


if __name__ == "__main__":
    for name in CONSTRUCTIONS:
        formulas, found, shown, texts, whole = scores(name)
        print(f"| {name} | {formulas} | {found / formulas:.2f} | {found / max(shown, 1):.2f} | {whole}/{texts} |")
