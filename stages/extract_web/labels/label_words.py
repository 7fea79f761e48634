"""The words of labels, by what they label: English with the phrases around them, other languages by their nouns.

Accents may be missing, as on old pages ("Losung", "Solucion"). What else a language does around the noun ("Lösung
anzeigen", "Ver solución") is a short list of verbs of showing.
"""

from __future__ import annotations

_ROMAN = r"(?=[ivx]|l[ivx]|c[ivxl]{2})c?(?:x[cl]|l?x{0,3})(?:i[xv]|v?i{0,3})"
"""Up to 189; "Exercise C" counts in letters, and a "CV" is none."""
NUMBER = rf"(?P<number>[A-Z]?\d{{1,6}}(?:[.\-]\d{{1,6}})*[a-z]?|{_ROMAN})"
_SHOW = (
    r"(?:show/hide|show|see|view|reveal|display|hide|check|open|get|toggle|unlock|expand|read|unhide|uncover|peek\s+at"
    r"|voir|afficher|montrer|ver|mostrar|mostra|vedi|toon|bekijk|показать)"
)
_ARTICLE = r"(?:the|my|a|an|your|la|le|les|el|las|los|il|het|eine)"
OPENER = (
    r"(?:(?:spoiler|hidden)\s*[:–-]?\s*)?"
    r"(?:(?:click|tap|press|hover)\s+(?:here\s+)?(?:to|for)\s+)?"
    rf"(?:{_SHOW}\s+(?:me\s+)?)?"
    rf"(?:(?:{_ARTICLE}|full|worked|worked-out|detailed|sample|suggested|model|step-by-step|official|best|accepted"
    r"|top|final|correct|right|expected|our|(?:author|teacher|instructor)['’]?s|short|complete|expert|verified|possible|proposed|example|guided|quick|brief|video)\s+){0,3}"
)
CLOSER = r"(?:\s+(?:(?:an|ein|aus)?zeigen|(?:ein|aus)blenden|ansehen|tonen|bekijken))?"
PROBLEM_NOUNS = (
    r"aufgabe|(?:ü|ue|u)bung(?:saufgabe)?|beispiel(?:aufgabe)?|frage|exercice|probl[eè]me|ejercicio|problema|ejemplo"
    r"|pregunta|esercizio|esempio|domanda|exerc[ií]cio|exemplo|quest[aã]o|pergunta|opgave|oefening|vraag|zadanie"
    r"|przyk[lł]ad|задача|упражнение|пример|вопрос"
    r"|例题|例題|例|习题|習題|练习|練習|问题|問題|题目|題目"
)
SOLUTION_NOUNS = (
    r"(?:muster)?l(?:ö|oe|o)sung(?:en|sweg|svorschlag)?|rechenweg|erkl(?:ä|ae|a)rung|corrig[eé]s?|r[eé]solution"
    r"|explication|soluci[oó]n(?:es)?|resoluci[oó]n|explicaci[oó]n|soluzion[ei]|svolgimento|spiegazione"
    r"|solu[cç](?:ão|ao|ões|oes)|resolu[cç][aã]o|explica[cç][aã]o|oplossing(?:en)?|uitwerking(?:en)?"
    r"|rozwi[aą]zanie|решени[ея]|解答?|解析|解法|解説|解说"
)
ANSWER_NOUNS = (
    r"antwort(?:en)?|ergebnis(?:se)?|r[eé]ponses?|r[eé]sultat|respuestas?|resultado|rispost[ae]|risultato|respostas?"
    r"|antwoord(?:en)?|odpowied[zź]|ответы?|答案?|答え"
)
ASIDE_NOUNS = r"hinweis|tipp|indice|astuce|pista|suggerimento|dica|подсказка"
PLURAL_PROBLEMS = (
    r"exercises|problems|questions|examples|(?:übungs)?aufgaben|übungen|exercices|probl[eè]mes|ejercicios|problemas"
    r"|preguntas|esercizi|domande|exerc[ií]cios|perguntas|opgaven|oefeningen|задачи|упражнения"
)
KEYS = (
    r"(?:answers|solutions|(?:answer|solution)\s+key|key|mark(?:ing)?\s*scheme|l(?:ö|oe)sungen|antworten|corrig[eé]s|r[eé]ponses"
    r"|soluciones|respuestas|soluzioni|risposte|solu[cç][oõ]es|respostas|oplossingen|antwoorden|ответы)"
)
WORDS = {
    "problem": r"(?:(?:(?:worked|practice|sample|review|solved|homework|test|exam|quiz|weekly|daily|monthly|your|the)"
    r"\s+)?"
    r"(?:(?:problem|puzzle|question|challenge)\s+of\s+the\s+(?:day|week|month|year)|exercises?|problem|question|example|practice|task|quiz|puzzle|challenge|checkpoint|self-?check|your\s+turn"
    r"|(?:activity|drill|warm-?up|investigation|exploration|item)(?=[\s.#]*(?:no\.?\s*)?\d)"
    r"|check\s+your\s+(?:understanding|knowledge)|(?:concept|quick|knowledge)\s+check|test\s+yourself"
    rf"|(?:you\s+|now\s+)?try\s+it(?:\s+(?:yourself|now))?|{PROBLEM_NOUNS})(?:\s+(?:statement|text))?"
    r"|prob|ques|que(?=[\s.]*\d)|qn(?=[\s.]*\d)|ex|q(?:\.?\s?no(?=\W{0,3}\d))?)",
    "solution": OPENER
    + r"(?:(?:solution|answer)s?\s*(?:and|&|/|with|\+)\s*(?:explanation|solution|answer|working|steps|reasoning)s?"
    r"|mark(?:ing)?\s*scheme(?:\s+(?:solutions?|answers?))?|(?:general\s+|overall\s+)?feedback|solutions?|sol['’]?n|sol|workings?|working\s+out|worked\s+out"
    r"|explanation|steps|walk-?through|proof|derivation|reasoning|step[\s-]by[\s-]step"
    r"|how\s+to\s+(?:solve|do|find|answer|work\s+out)\s+(?:it|this)|here['’]?s\s+(?:how|why)(?:\s+to\s+do\s+it)?"
    r"|(?:let['’]?s|how\s+we)\s+(?:solved?|did|do|worked?|work|got|found)\s+(?:it|this|them|there)(?:\s+out)?"
    rf"|(?<=model\s)response|(?<=sample\s)response|(?<=suggested\s)response|(?<=possible\s)response|{SOLUTION_NOUNS})"
    rf"{CLOSER}",
    "answer": OPENER + rf"(?:answers?|ans|result|answer\s+key|{ANSWER_NOUNS}){CLOSER}",
    "aside": r"(?:(?:(?:show|see|view|get|need|want)\s+)?(?:an?\s+|me\s+a\s+)?hints?(?:\s+please)?\??"
    r"|(?:(?:correct|also|first)\s+)?(?:solvers?|solved\s+by)|clues?|nudge|tips?|discussion|comments?|rating|difficulty|topics?|tags?"
    rf"|source|remarks?|notes?|strategy|{ASIDE_NOUNS})",
}
"""Part -> the words that label it, without number and signs."""
