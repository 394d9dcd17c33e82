"""Words and small facts that the generated English is made of."""

NAMES = ["Ana", "Ben", "Clara", "David", "Elena", "Farid", "Grace", "Hugo", "Ines", "Jonas", "Kira", "Leo", "Maya", "Nils", "Olga", "Pablo", "Quinn", "Rosa", "Sam", "Tara", "Uma", "Victor", "Wanda", "Xavier", "Yara", "Zoe", "Omar", "Lina", "Peter", "Julia", "Tom", "Mia", "Noah", "Ella"]

#: Country, capital, continent.
COUNTRIES = (
    ("France", "Paris", "Europe"),
    ("Spain", "Madrid", "Europe"),
    ("Italy", "Rome", "Europe"),
    ("Germany", "Berlin", "Europe"),
    ("Portugal", "Lisbon", "Europe"),
    ("Greece", "Athens", "Europe"),
    ("Norway", "Oslo", "Europe"),
    ("Sweden", "Stockholm", "Europe"),
    ("Poland", "Warsaw", "Europe"),
    ("Austria", "Vienna", "Europe"),
    ("Ireland", "Dublin", "Europe"),
    ("Japan", "Tokyo", "Asia"),
    ("China", "Beijing", "Asia"),
    ("India", "New Delhi", "Asia"),
    ("Thailand", "Bangkok", "Asia"),
    ("Vietnam", "Hanoi", "Asia"),
    ("Turkey", "Ankara", "Asia"),
    ("Egypt", "Cairo", "Africa"),
    ("Kenya", "Nairobi", "Africa"),
    ("Ghana", "Accra", "Africa"),
    ("Morocco", "Rabat", "Africa"),
    ("Peru", "Lima", "South America"),
    ("Chile", "Santiago", "South America"),
    ("Brazil", "Brasilia", "South America"),
    ("Canada", "Ottawa", "North America"),
    ("Mexico", "Mexico City", "North America"),
    ("Cuba", "Havana", "North America"),
)

#: Thing, kind, two things that are true of it, where it is found.
THINGS = (
    ("sparrow", "bird", "small", "brown", "in gardens"),
    ("eagle", "bird", "large", "strong", "in the mountains"),
    ("duck", "bird", "calm", "round", "on the lake"),
    ("owl", "bird", "quiet", "wise", "in the forest"),
    ("fox", "animal", "clever", "red", "in the forest"),
    ("wolf", "animal", "grey", "fast", "in the forest"),
    ("rabbit", "animal", "soft", "quick", "in the field"),
    ("horse", "animal", "tall", "strong", "on the farm"),
    ("cow", "animal", "gentle", "heavy", "on the farm"),
    ("cat", "animal", "soft", "curious", "in the house"),
    ("dog", "animal", "loyal", "playful", "in the house"),
    ("mouse", "animal", "tiny", "shy", "under the floor"),
    ("salmon", "fish", "silver", "fast", "in the river"),
    ("shark", "fish", "large", "grey", "in the sea"),
    ("apple", "fruit", "sweet", "red", "on a tree"),
    ("lemon", "fruit", "sour", "yellow", "on a tree"),
    ("pear", "fruit", "sweet", "green", "on a tree"),
    ("plum", "fruit", "soft", "purple", "on a tree"),
    ("cherry", "fruit", "small", "red", "on a tree"),
    ("carrot", "vegetable", "orange", "crisp", "in the ground"),
    ("onion", "vegetable", "round", "sharp", "in the kitchen"),
    ("potato", "vegetable", "brown", "plain", "in the ground"),
    ("rose", "flower", "red", "fragrant", "in the garden"),
    ("tulip", "flower", "bright", "tall", "in the garden"),
    ("oak", "tree", "tall", "old", "in the park"),
    ("pine", "tree", "green", "straight", "on the hill"),
    ("hammer", "tool", "heavy", "useful", "in the workshop"),
    ("saw", "tool", "sharp", "long", "in the workshop"),
    ("chair", "piece of furniture", "wooden", "simple", "in the kitchen"),
    ("table", "piece of furniture", "flat", "wide", "in the kitchen"),
    ("bicycle", "vehicle", "light", "fast", "on the road"),
    ("train", "vehicle", "long", "loud", "at the station"),
    ("boat", "vehicle", "small", "white", "on the lake"),
    ("violin", "instrument", "old", "delicate", "in the music room"),
    ("drum", "instrument", "round", "loud", "in the music room"),
    ("piano", "instrument", "black", "heavy", "in the hall"),
)

OPPOSITES = (
    ("hot", "cold"),
    ("big", "small"),
    ("fast", "slow"),
    ("light", "dark"),
    ("old", "new"),
    ("happy", "sad"),
    ("full", "empty"),
    ("early", "late"),
    ("high", "low"),
    ("hard", "soft"),
    ("open", "closed"),
    ("wet", "dry"),
    ("loud", "quiet"),
    ("long", "short"),
    ("rich", "poor"),
    ("strong", "weak"),
    ("clean", "dirty"),
    ("near", "far"),
    ("thick", "thin"),
    ("wide", "narrow"),
    ("true", "false"),
    ("up", "down"),
    ("left", "right"),
    ("day", "night"),
)

PLURALS = (
    ("cat", "cats"),
    ("box", "boxes"),
    ("child", "children"),
    ("man", "men"),
    ("woman", "women"),
    ("foot", "feet"),
    ("mouse", "mice"),
    ("city", "cities"),
    ("leaf", "leaves"),
    ("book", "books"),
    ("bus", "buses"),
    ("tooth", "teeth"),
    ("story", "stories"),
    ("knife", "knives"),
    ("house", "houses"),
    ("person", "people"),
)

#: English, French, Spanish, German.
TRANSLATIONS = (
    ("water", "eau", "agua", "Wasser"),
    ("bread", "pain", "pan", "Brot"),
    ("house", "maison", "casa", "Haus"),
    ("dog", "chien", "perro", "Hund"),
    ("cat", "chat", "gato", "Katze"),
    ("book", "livre", "libro", "Buch"),
    ("sun", "soleil", "sol", "Sonne"),
    ("night", "nuit", "noche", "Nacht"),
    ("friend", "ami", "amigo", "Freund"),
    ("milk", "lait", "leche", "Milch"),
    ("hand", "main", "mano", "Hand"),
    ("tree", "arbre", "arbol", "Baum"),
)

DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"]

#: One of it, how many, of what.
UNITS = (
    ("minute", 60, "seconds"),
    ("hour", 60, "minutes"),
    ("day", 24, "hours"),
    ("week", 7, "days"),
    ("year", 12, "months"),
    ("metre", 100, "centimetres"),
    ("kilometre", 1000, "metres"),
    ("kilogram", 1000, "grams"),
    ("dozen", 12, "pieces"),
    ("decade", 10, "years"),
    ("century", 100, "years"),
)

PRODUCTS = ["lamp", "kettle", "backpack", "jacket", "keyboard", "mug", "blanket", "tent", "headset", "notebook", "charger", "camera", "scarf", "bottle", "desk", "clock", "speaker", "umbrella", "wallet", "helmet"]

PLACES = ["market", "park", "library", "station", "school", "kitchen", "garden", "harbour", "museum", "bakery", "village", "river", "bridge", "forest", "beach", "hill", "office", "shop", "square", "farm"]

FEELINGS = ["happy", "tired", "proud", "calm", "nervous", "curious", "hungry", "cheerful", "quiet", "surprised"]

WEATHER = ("sunny", "rainy", "windy", "cold", "warm", "foggy", "snowy", "stormy")

#: A task, and its steps.
RECIPES = (
    (
        "make tea",
        (
            "Boil some water.",
            "Put a tea bag in a cup.",
            "Pour the water into the cup.",
            "Wait three minutes.",
        ),
    ),
    (
        "boil an egg",
        (
            "Fill a pot with water.",
            "Heat the water until it boils.",
            "Put the egg in the water.",
            "Wait eight minutes.",
        ),
    ),
    (
        "plant a tree",
        (
            "Dig a deep hole.",
            "Place the tree in the hole.",
            "Fill the hole with earth.",
            "Give it plenty of water.",
        ),
    ),
    (
        "send a letter",
        (
            "Write the letter.",
            "Put it in an envelope.",
            "Write the address on the front.",
            "Bring it to the post office.",
        ),
    ),
    (
        "clean a window",
        (
            "Fill a bucket with warm water.",
            "Wash the glass with a cloth.",
            "Dry the glass with a towel.",
            "Check for spots.",
        ),
    ),
    (
        "fix a flat tire",
        (
            "Take the wheel off.",
            "Find the hole in the tube.",
            "Put a patch on the hole.",
            "Fill the tube with air.",
        ),
    ),
    (
        "make a salad",
        (
            "Wash the vegetables.",
            "Cut them into small pieces.",
            "Mix them in a bowl.",
            "Add oil and salt.",
        ),
    ),
    (
        "learn a song",
        ("Listen to the song.", "Read the words.", "Sing along slowly.", "Practise every day."),
    ),
    (
        "pack a bag",
        (
            "Make a list.",
            "Fold your clothes.",
            "Put the heavy things at the bottom.",
            "Close the bag.",
        ),
    ),
    (
        "reset a password",
        (
            "Open the sign-in page.",
            "Choose the link for a lost password.",
            "Enter your email address.",
            "Follow the link in the message.",
        ),
    ),
)

#: Something a customer says, and a plain answer. ``{p}`` is a product, ``{n}`` a number.
SUPPORT = (
    ("Where is my order?", "Your order left our store on {day}. It will arrive in {n} days."),
    ("When will the {p} arrive?", "The {p} will arrive in {n} days."),
    ("My {p} arrived broken.", "We will send a new {p} in {n} days. You can keep the broken one."),
    (
        "I want to return the {p}.",
        "You can return the {p} within {n} days. Print the label in your account.",
    ),
    (
        "The {p} is the wrong colour.",
        "We can change the colour of the {p}. Send it back to us first.",
    ),
    ("How much does the {p} cost?", "The {p} costs {n} dollars."),
    ("I forgot my password.", "Open the sign-in page and choose the link for a lost password."),
    ("How do I change my address?", "Open your account, choose addresses and enter the new one."),
    ("Can I cancel my order?", "You can cancel an order until it leaves our store."),
    ("Do you have the {p} in blue?", "We have the {p} in blue, red and green."),
    ("I was charged twice.", "We will return one of the payments in {n} days."),
    ("My {p} does not turn on.", "Charge the {p} for {n} hours and try again."),
    ("Is the {p} still in stock?", "There are {n} pieces of the {p} in stock."),
    ("Can I get a receipt?", "You can find the receipt in your account under orders."),
    ("Who can help me with my {p}?", "Our team can help you with your {p} from {day} to Friday."),
    ("The parcel never came.", "We will look for the parcel and write to you in {n} days."),
    ("How long is the warranty for the {p}?", "The warranty for the {p} is {n} years."),
    ("Can you gift wrap the {p}?", "We can wrap the {p} as a gift. Choose it when you pay."),
)
