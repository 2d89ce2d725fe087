"""articles: in which country is it?  Questions about eight short paragraphs as an encyclopaedia has them.

The facts are real, so a model may know some without reading: what it answers after too little of the text shows how
many. All answers are countries or lands, so that their kind does not give them away.
"""

from __future__ import annotations

from collections.abc import Set

from undilute.evaluation.tasks import Asked, Hidden, in_random_order, task
from undilute.evaluation.words import Generator, Words

ARTICLES = 8  # of a haystack; every one is asked about
PARAGRAPHS = {  # answer: what is said, what is asked
    "Spain": (
        "The Tower of Hercules is a Roman lighthouse that is still in use. It stands on a headland in the north-west "
        "of Spain.",
        "In which country is the Tower of Hercules?",
    ),
    "Estonia": (
        "The Kopu Lighthouse was first lit in 1531. It is a heavy stone tower on the island of Hiiumaa in Estonia.",
        "In which country is the Kopu Lighthouse?",
    ),
    "Norway": (
        "The Lindesnes Lighthouse was first lit in 1656. It marks the southern tip of the mainland of Norway.",
        "In which country is the Lindesnes Lighthouse?",
    ),
    "France": (
        "The Cordouan Lighthouse was completed in 1611. It stands in the sea at the mouth of the Gironde in France.",
        "In which country is the Cordouan Lighthouse?",
    ),
    "Kenya": (
        "The Tana is about a thousand kilometres long. It is the longest river of Kenya and flows into the Indian "
        "Ocean.",
        "In which country is the river Tana?",
    ),
    "Czechia": (
        "The Vltava rises in the Bohemian Forest and joins the Elbe. It is the longest river within Czechia.",
        "In which country is the river Vltava?",
    ),
    "Italy": (
        "The launeddas has three pipes of reed and is played without a pause for breath. It comes from Sardinia in "
        "Italy.",
        "From which country does the launeddas come?",
    ),
    "Finland": (
        "The kantele is plucked, and its oldest form has five strings. It is the national instrument of Finland.",
        "Of which country is the kantele the national instrument?",
    ),
    "Mongolia": (
        "The morin khuur is a fiddle with two strings. Its neck ends in the carved head of a horse, and it is a symbol "
        "of Mongolia.",
        "From which country does the morin khuur come?",
    ),
    "Armenia": (
        "The duduk is a pipe with a double reed, made of apricot wood. Its soft sound belongs to the music of Armenia.",
        "To the music of which country does the duduk belong?",
    ),
    "Korea": (
        "The gayageum is a zither that lies on the knees of the player. It traditionally has twelve strings of silk "
        "and comes from Korea.",
        "From which country does the gayageum come?",
    ),
    "Zimbabwe": (
        "The mbira has metal tongues that are plucked with the thumbs. It is an old instrument of the Shona people of "
        "Zimbabwe.",
        "In which country do the Shona people play the mbira?",
    ),
    "Australia": (
        "The Sydney funnel-web spider digs burrows in moist soil. Its venom is dangerous to people, and it is native "
        "to Australia.",
        "To which country is the Sydney funnel-web spider native?",
    ),
    "Madagascar": (
        "Darwin's bark spider hangs its web across rivers. Its silk is among the toughest known, and it lives in "
        "Madagascar.",
        "In which country does Darwin's bark spider live?",
    ),
    "Greenland": (
        "Cryolite looks like ice and was once needed to make aluminium. Its one large deposit was at Ivittuut in "
        "Greenland.",
        "In which land was the one large deposit of cryolite?",
    ),
    "Myanmar": (
        "Painite is a brownish red gemstone that was long among the rarest of all. It was first found in Myanmar.",
        "In which country was painite first found?",
    ),
    "Brazil": (
        "Imperial topaz is a gemstone of orange or pink colour. It is mined near the town of Ouro Preto in Brazil.",
        "In which country is imperial topaz mined near Ouro Preto?",
    ),
    "Djibouti": (
        "Lake Assal lies more than 150 metres below the level of the sea and is far saltier. It is in Djibouti.",
        "In which country is Lake Assal?",
    ),
    "Iceland": (
        "Surtsey is an island that rose from the sea when a volcano erupted in 1963. It lies off the south coast of "
        "Iceland.",
        "Off the coast of which country is Surtsey?",
    ),
    "Libya": (
        "Leptis Magna was a large Roman city where the emperor Septimius Severus was born. Its ruins lie on the coast "
        "of Libya.",
        "In which country are the ruins of Leptis Magna?",
    ),
    "Sudan": (
        "The pyramids of Meroe are smaller and steeper than those at Giza. About two hundred of them stand in the "
        "desert of Sudan.",
        "In which country are the pyramids of Meroe?",
    ),
    "Laos": (
        "The Plain of Jars is a plateau on which stone jars lie in groups. Some are three metres tall, and all are in "
        "Laos.",
        "In which country is the Plain of Jars?",
    ),
    "Peru": (
        "Chan Chan was the capital of the Chimu and was built of mud bricks. Its ruins lie near the coast of Peru.",
        "In which country are the ruins of Chan Chan?",
    ),
    "Poland": (
        "The Wieliczka mine gave salt from the Middle Ages until 1996. It has chapels that are cut from salt, and it "
        "is in Poland.",
        "In which country is the Wieliczka mine?",
    ),
}


@task(
    "articles",
    hides={max((says for says, _ in PARAGRAPHS.values()), key=len): ARTICLES},
    asks=max((asks for _, asks in PARAGRAPHS.values()), key=len),
    usual=False,
)
def articles(words: Words, taken: Set[str], generator: Generator) -> Hidden:
    answers = words.chosen(list(PARAGRAPHS), ARTICLES, taken, generator)
    if len(answers) < ARTICLES:
        raise words.too_few(f"{len(answers)} of {len(PARAGRAPHS)} countries", ARTICLES)
    needles = [PARAGRAPHS[answer][0] for answer in answers]
    asked = [Asked(PARAGRAPHS[answer][1], sorted(answers), [answer], [place]) for place, answer in enumerate(answers)]
    return in_random_order(needles, asked, generator)
