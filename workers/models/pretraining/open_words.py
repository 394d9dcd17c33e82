"""Names, numbers and codes without end, so that a model can only copy them."""

from __future__ import annotations

from random import Random

from workers.models.pretraining.words import NAMES, PRODUCTS

_STARTS = (
    *("b", "br", "c", "ch", "d", "dr", "f", "g", "gr", "h", "j", "k", "l", "m", "n", "p", "r"),
    *("s", "sh", "st", "t", "th", "tr", "v", "w", "y", "z", "", "", ""),
)
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ea", "ia", "ie", "o", "a", "e")
_ENDS = ("", "", "", "n", "l", "r", "s", "m", "k", "t", "th", "nd", "ne", "ra", "lia", "ck")

#: First names of many places; a copying model must not know one list by heart.
FIRST_NAMES = (
    *("Aaron", "Abel", "Ada", "Adam", "Aisha", "Akira", "Alan", "Alba", "Alice", "Amara", "Amir"),
    *("Andrea", "Anna", "Anton", "Arjun", "Astrid", "Aylin", "Beatrice", "Bilal", "Boris"),
    *("Bruno", "Carla", "Carmen", "Cecil", "Chen", "Chloe", "Daniel", "Daria", "Deniz", "Dora"),
    *("Edith", "Edgar", "Emil", "Emma", "Erik", "Esther", "Eva", "Fatima", "Felix", "Fiona"),
    *("Frank", "Freya", "Gabriel", "George", "Greta", "Gustav", "Hana", "Hans", "Harold", "Heidi"),
    *("Helen", "Henry", "Ian", "Ibrahim", "Ida", "Igor", "Irene", "Isaac", "Ivan", "Jacob"),
    *("Jana", "Jasmine", "Joel", "John", "Judith", "Karim", "Karin", "Kenji", "Kevin", "Laila"),
    *("Lars", "Laura", "Leila", "Linus", "Louis", "Lucia", "Luis", "Magda", "Marco", "Maria"),
    *("Martin", "Mei", "Milan", "Mona", "Nadia", "Nathan", "Nina", "Nora", "Oscar", "Otto"),
    *("Paula", "Pedro", "Petra", "Priya", "Rafael", "Ravi", "Rita", "Robert", "Ruth", "Salma"),
    *("Sandra", "Selma", "Silvia", "Simon", "Sofia", "Stella", "Sven", "Tamar", "Tariq", "Theo"),
    *("Tilda", "Tobias", "Ursula", "Vera", "Vincent", "Viola", "Walter", "Wei", "Yusuf", "Zara"),
)

GOODS = (
    *("apron", "armchair", "bag", "basket", "belt", "bicycle", "blender", "bookcase", "boots"),
    *("bowl", "bracelet", "broom", "bucket", "calendar", "candle", "carpet", "chair", "coat"),
    *("compass", "cup", "cupboard", "curtain", "cushion", "drill", "fan", "flask", "fork"),
    *("freezer", "gloves", "guitar", "hammock", "hat", "heater", "hose", "iron", "jug", "kite"),
    *("ladder", "lantern", "mattress", "microphone", "mirror", "monitor", "mouse", "necklace"),
    *("oven", "pan", "pen", "pillow", "plate", "printer", "puzzle", "radio", "raincoat", "razor"),
    *("ring", "rope", "router", "rug", "saddle", "sandals", "saucepan", "scale", "screen"),
    *("shelf", "shirt", "shovel", "skirt", "sofa", "spoon", "stool", "suitcase", "sweater"),
    *("table", "tablet", "teapot", "telescope", "toaster", "towel", "toy", "trousers", "vase"),
    *("watch", "wardrobe", "whistle", "yoga mat", *PRODUCTS),
)
COLOURS = (
    *("red", "blue", "green", "black", "white", "grey", "brown", "yellow", "orange", "purple"),
    *("pink", "golden", "silver", "dark", "light", "striped", "plain"),
)


def draw_name(random: Random) -> str:
    """A first name: from a list, or of syllables that no list holds."""
    kind = random.random()
    if kind < 0.25:
        return random.choice(NAMES)
    if kind < 0.5:
        return random.choice(FIRST_NAMES)
    return draw_invented(random).capitalize()


def draw_invented(random: Random) -> str:
    """A word that can be spoken and means nothing."""
    syllables = random.choice((1, 2, 2, 2, 3))
    parts = [random.choice(_STARTS) + random.choice(_VOWELS) for _ in range(syllables)]
    word = "".join(parts) + random.choice(_ENDS)
    return word if len(word) > 2 else word + "na"


def draw_good(random: Random) -> str:
    """Something a shop sells."""
    good = random.choice(GOODS)
    return f"{random.choice(COLOURS)} {good}" if random.random() < 0.2 else good


def draw_code(random: Random) -> str:
    """A number or a code, such as an order has."""
    kind = random.randrange(4)
    if kind == 0:
        return str(random.randint(100, 99999))
    letters = "".join(
        random.choice("ABCDEFGHJKLMNPQRSTUVWXYZ") for _ in range(random.randint(1, 3))
    )
    number = random.randint(1, 9999)
    return (f"{letters}{number}", f"{letters}-{number}", f"{number}{letters}")[kind - 1]


def draw_address(random: Random) -> str:
    """An email address nobody has."""
    name = random.choice((draw_name(random).lower(), draw_invented(random)))
    domain = random.choice((draw_invented(random), random.choice(GOODS).replace(" ", "")))
    return f"{name}@{domain}.example"


_FIRM_STARTS = (
    *("North", "South", "East", "West", "River", "Stone", "Green", "Blue", "Silver", "Oak", "Sun"),
    *("Moon", "Bright", "Red", "White", "Black", "High", "Spring", "Winter", "Summer", "Star"),
    *("Sea", "Lake", "Rose", "Wood", "Fox", "Swan", "Clear", "Long", "New", "Fair", "Hill"),
)
_FIRM_ENDS = (
    *("field", "gate", "bridge", "water", "side", "brook", "house", "land", "way", "light"),
    *("mill", "port", "ford", "ham", "wood", "yard", "stone", "hill", "works", "line", "point"),
)


def draw_firm(random: Random) -> str:
    """The name of a firm: invented, or of two words."""
    if random.random() < 0.4:
        return draw_invented(random).capitalize()
    return random.choice(_FIRM_STARTS) + random.choice(_FIRM_ENDS)
