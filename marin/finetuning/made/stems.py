"""English words from stems by the rules of their endings: verbs, nouns and adjectives of everyday life.

Every verb here is regular, and none doubles its last letter, so that the few rules below are all that it takes.
"""

_VERBS = """
accept add allow answer arrive ask bake believe belong boil borrow call carry change check choose clean climb close collect cook
count cover cross dance decide deliver discover divide draw dress dry enjoy enter explain fail fill finish fix float fold follow
gather guess happen help hope hunt invite join jump kick knock land laugh learn lift like listen live look love march measure melt
mix move need open order pack paint pass pick plant play point pour practice pull push race rain reach repair repeat rescue rest
return roll row sail save search serve share shout smile solve sort spell start stay stretch study taste thank touch train travel
treat trust turn visit vote wait walk want warn wash watch whisper wish wonder work worry yell
"""
_IRREGULAR = frozenset({"choose", "draw"})  # their past is no stem with an ending
_NOUNS = """
animal apple apron bag ball banana basket bath beach bean bear bed bell bench bird blanket boat book bottle bowl box branch bread
bridge brother brush bucket button cake camera candle carpet castle cat cave chair cheese cherry chicken church circle city class
clock cloud coat coin corner cotton country cousin crayon cup daughter desk dinner doctor dog door dragon dream drum duck eagle
engine evening eye family farm feather finger fire floor flower forest fork friend frog garden giraffe glass glove grape guitar
hammer hand hat heart hill horse hospital house insect island jacket jar jungle kettle key kitchen kitten ladder lake lamp leg
lemon letter library lion market meadow mirror monkey month moon morning mountain mouth museum napkin needle nest night noodle
notebook number ocean onion orange oven owl pan parrot party pencil penguin pepper piano picnic picture pillow pirate planet plate
pocket pond potato prince pumpkin puppy puzzle queen rabbit ribbon ring river road robot roof room rose sandwich school season
shadow ship shoe shoulder sister snake spider spoon square squirrel stable star station stone store storm story street summer
table tail teacher temple tiger tomato tower town toy tree tunnel turtle uncle valley village violin wagon wall water weather
whale wheel window winter world yard year zebra
"""
_ADJECTIVES = """
angry bitter bold brave bright calm careful cheerful clear clever cold cool dark deep dull easy empty fair fast fierce firm fresh
gentle grand great happy hard heavy high honest hungry kind late lazy light loud lucky mild narrow neat nice noisy odd plain
pleasant polite poor proud quick quiet rare rich rough round safe sharp short shy simple sleepy slow small smart smooth soft strange
strong sudden sweet tall tender tidy tight tiny warm weak wide wild wise young
"""
_NO_ADVERB = frozenset({"fast", "small", "tall", "tiny", "tidy", "young", "odd", "shy", "sleepy", "easy"})
_NO_NOUN = frozenset({"angry", "high", "honest", "strange", "young"})


def inflected_words() -> frozenset[str]:
    """All stems, with the endings that each takes."""
    verbs, nouns, adjectives = (text.split() for text in (_VERBS, _NOUNS, _ADJECTIVES))
    words = {*verbs, *nouns, *adjectives}
    words.update(_with_s(stem) for stem in (*verbs, *nouns))
    words.update(_with_ing(stem) for stem in verbs)
    words.update(_with_ed(stem) for stem in verbs if stem not in _IRREGULAR)
    words.update(_with_ly(stem) for stem in adjectives if stem not in _NO_ADVERB)
    words.update(_with_ness(stem) for stem in adjectives if stem not in _NO_NOUN)
    return frozenset(words)


def _with_s(stem: str) -> str:
    """ "bake" to "bakes", "box" to "boxes", "carry" to "carries", "potato" to "potatoes"."""
    if stem in ("potato", "tomato") or stem.endswith(("s", "x", "z", "ch", "sh")):
        return stem + "es"
    return _soft(stem) + "es" if _soft(stem) != stem else stem + "s"


def _with_ed(stem: str) -> str:
    return stem + "d" if stem.endswith("e") else _soft(stem) + "ed"


def _with_ing(stem: str) -> str:
    return stem.removesuffix("e") + "ing"


def _with_ly(stem: str) -> str:
    """ "happy" to "happily", "gentle" to "gently", "dull" to "dully"."""
    if stem.endswith("le"):
        return stem[:-1] + "y"
    return stem + "y" if stem.endswith("ll") else _soft(stem) + "ly"


def _with_ness(stem: str) -> str:
    return stem + "ness" if stem == "shy" else _soft(stem) + "ness"


def _soft(stem: str) -> str:
    """A `y` behind a consonant becomes an `i` before an ending."""
    return stem[:-1] + "i" if stem.endswith("y") and stem[-2] not in "aeiou" else stem
