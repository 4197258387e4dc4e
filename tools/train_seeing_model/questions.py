"""Questions about a scene and their answers, in many wordings."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random

from tools.train_seeing_model.scenes import COLOURS, Scene
from tools.train_seeing_model.sprites import SHAPES

NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven")
_PLURAL = {"cross": "crosses"}
_HELP = "Show me a picture of shapes, digits or a word, and ask what is in it."


@dataclass(frozen=True, slots=True)
class Turn:
    """task: for the evaluation. sees: False for a turn without a picture."""

    task: str
    question: str
    answer: str
    sees: bool = True


WORDINGS = {
    "describe": ("What is in the picture?", "What is in the image?", "Describe the image.", "Describe the picture.",
                 "What do you see?", "What is this?", "What can you see in this picture?", "What does the image show?",
                 "Describe this image.", "What is shown here?", "What is on this picture?", "What's in this image?",
                 "Tell me what you see.", "Please describe the picture."),
    "count": ("How many {s} are there?", "How many {s} do you see?", "Count the {s}.",
              "How many {s} are in the picture?", "How many {s} are in the image?", "What is the number of {s}?"),
    "count all": ("How many shapes are there?", "How many shapes do you see?", "Count the shapes.",
                  "How many shapes are in the picture?", "How many shapes are in the image?"),
    "colour": ("What colour is the {s}?", "What color is the {s}?", "Which colour is the {s}?",
               "Which color is the {s}?", "What colour does the {s} have?",
               "What is the colour of the {s}?", "What is the color of the {s}?"),
    "shape": ("What shape is {c}?", "Which shape is {c}?", "What is {c}?", "What is the {c} shape?",
              "What shape is the {c} one?"),
    "is there": ("Is there a {t}?", "Do you see a {t}?", "Is there a {t} in the picture?", "Can you see a {t}?",
                 "Is there a {t} in the image?", "Does the picture show a {t}?"),
    "where": ("Where is the {s}?", "In which part of the picture is the {s}?", "Where do you see the {s}?"),
    "read": ("Read the word.", "What does it say?", "What is the word?", "Which word is this?", "Read the text.",
             "What is written here?", "What word is in the picture?", "What does the text say?", "Read this.",
             "What text is in the image?", "What is the text?", "Which word do you see?", "What does the sign say?"),
    "number": ("Read the number.", "What number is this?", "What is the number?", "Which number do you see?"),
    "digit": ("What digit is this?", "Which digit is this?", "What is the digit?", "Which digit do you see?",
              "What digit is in the picture?", "Read the digit.", "What number is this?", "Which number is it?"),
    "background": ("What colour is the background?", "What color is the background?",
                   "What is the background colour?", "Which color does the background have?"),
}  # fmt: skip
_WITHOUT = (
    ("Hello!", "Hello! " + _HELP),
    ("Hello", "Hello! " + _HELP),
    ("Hi", "Hello! " + _HELP),
    ("Hi!", "Hello! " + _HELP),
    ("Who are you?", "I am a small model that sees. " + _HELP),
    ("What can you do?", "I name shapes, colours and digits, count, and read short words. " + _HELP),
    ("Help", "I name shapes, colours and digits, count, and read short words. " + _HELP),
)
_OTHER = (
    "Write a poem.", "What is the capital of France?", "Who painted this?", "Tell me a joke.", "What time is it?",
    "Is this a photo?", "What is two plus two?", "How old are you?", "Translate this.", "Why?", "Write a program.",
    "Who is the president?", "What animal is this?", "Is it raining?", "Summarise the text.",
)  # fmt: skip
SYSTEM = (
    "You are a helpful assistant.", "Answer briefly.", "You describe images.", "You are a model that sees.",
    "You are a helpful assistant that answers questions about images.", "Be polite.", "Answer in one sentence.",
)  # fmt: skip
_CANNOT = "I can only name shapes, colours and digits, count, and read short words."


def with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def plural(shape: str) -> str:
    return _PLURAL.get(shape, shape + "s")


def describe(scene: Scene) -> str:
    """Shapes in the order of SHAPES and COLOURS, then digits, then words from the top."""
    counts = Counter((one.kind, one.colour) for one in scene.things)
    parts = []
    for shape in SHAPES:
        for colour in COLOURS:
            count = counts[shape, colour]
            if count == 1:
                parts.append(with_article(f"{colour} {shape}"))
            elif count:
                parts.append(f"{NUMBERS[count]} {colour} {plural(shape)}")
    parts += [f"the {one.colour} digit {one.kind}" for one in scene.things if one.kind.isdigit()]
    for one in sorted(scene.words, key=lambda word: word.y):
        parts.append(f'the {one.colour} {"number" if one.text.isdigit() else "word"} "{one.text}"')
    if not parts:
        return "The picture is empty."
    text = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
    return text[0].upper() + text[1:] + "."


def turns(scene: Scene, random: Random) -> list[Turn]:
    """One of each kind that this scene has an answer to, in random order."""
    shapes = [one for one in scene.things if one.kind in SHAPES]
    kinds = Counter(one.kind for one in shapes)
    colours = Counter(one.colour for one in (*scene.things, *scene.words))
    found = [Turn("describe", _asked("describe", random), describe(scene))]
    if shapes or random.random() < 0.1:
        found += [_count(kinds, random), _is_there(scene, random)]
        found.append(_count_all(len(shapes), random))
    once = [one for one in shapes if kinds[one.kind] == 1]
    if once:
        one = random.choice(once)
        found.append(Turn("colour", _asked("colour", random, s=one.kind), f"The {one.kind} is {one.colour}."))
        place = _place(one.x, one.y)
        if place:
            found.append(Turn("where", _asked("where", random, s=one.kind), f"The {one.kind} is {place}."))
    unique = [one for one in shapes if colours[one.colour] == 1]
    if unique:
        one = random.choice(unique)
        found.append(Turn("shape", _asked("shape", random, c=one.colour), f"The {one.kind} is {one.colour}."))
    if random.random() < 0.06:
        shape = random.choice([one for one in SHAPES if one not in kinds])
        task = random.choice(("colour", "where"))
        found.append(Turn("absent", _asked(task, random, s=shape), f"There is no {shape} in the picture."))
    if scene.background and random.random() < 0.4:
        answer = f"The background is {scene.background}."
        found.append(Turn("background", _asked("background", random), answer))
    found += _texts(scene, random)
    if random.random() < 0.02:
        found.append(Turn("other", random.choice(_OTHER), _CANNOT))
    random.shuffle(found)
    if scene.words:  # reading is the hardest: it comes first more often
        found.sort(key=lambda turn: turn.task not in ("read", "number") or random.random() < 0.3)
    if random.random() < 0.03:
        found.insert(0, without_picture(random))
    return found


def _texts(scene: Scene, random: Random) -> list[Turn]:
    digits = [one for one in scene.things if one.kind.isdigit()]
    found = []
    if len(scene.words) == 1 or (scene.words and random.random() < 0.8):
        texts = [f'"{one.text}"' for one in sorted(scene.words, key=lambda word: word.y)]
        are_numbers = all(one.text.isdigit() for one in scene.words)
        kind = ("number" if are_numbers else "word") if len(texts) == 1 else "text"
        task = "number" if kind == "number" and not digits and random.random() < 0.6 else "read"
        found.append(Turn("read", _asked(task, random), f"The {kind} is {' and '.join(texts)}."))
        if len(texts) == 1:
            question = _asked("colour", random, s=random.choice((kind, "text")))
            found.append(Turn("colour of text", question, f"The {kind} is {scene.words[0].colour}."))
            place = _place(scene.words[0].x, scene.words[0].y)
            if place:
                found.append(Turn("where", _asked("where", random, s=kind), f"The {kind} is {place}."))
    elif not scene.words and not digits and random.random() < 0.06:
        found.append(Turn("absent", _asked("read", random), "There is no text in the picture."))
    if len(digits) == 1:
        found.append(Turn("digit", _asked("digit", random), f"It is the digit {digits[0].kind}."))
        found.append(Turn("colour", _asked("colour", random, s="digit"), f"The digit is {digits[0].colour}."))
    elif not scene.words and random.random() < 0.04:
        found.append(Turn("absent", _asked("digit", random), "There is no digit in the picture."))
    return found


def without_picture(random: Random) -> Turn:
    """A turn of a chat that has no picture."""
    if random.random() < 0.5:
        question, answer = random.choice(_WITHOUT)
        return Turn("without", question, answer, sees=False)
    task = random.choice(("describe", "read", "digit", "count all", "background"))
    return Turn("without", _asked(task, random), "I see no picture. " + _HELP, sees=False)


def _count(kinds: Counter[str], random: Random) -> Turn:
    shape = random.choice(list(kinds)) if kinds and random.random() < 0.75 else random.choice(SHAPES)
    return Turn("count", _asked("count", random, s=plural(shape)), _there(kinds[shape], shape, plural(shape)))


def _count_all(count: int, random: Random) -> Turn:
    return Turn("count", _asked("count all", random), _there(count, "shape", "shapes"))


def _there(count: int, one: str, several: str) -> str:
    return f"There is one {one}." if count == 1 else f"There are {NUMBERS[count]} {several}."


def _is_there(scene: Scene, random: Random) -> Turn:
    shapes = [one for one in scene.things if one.kind in SHAPES]
    names = {f"{one.colour} {one.kind}" for one in shapes} | {one.kind for one in shapes}
    if names and random.random() < 0.5:
        name = random.choice(sorted(names))
    else:
        colour, shape = random.choice(tuple(COLOURS)), random.choice(SHAPES)
        if shapes and random.random() < 0.6:  # nearly one that is there
            one = random.choice(shapes)
            colour, shape = random.choice(((one.colour, shape), (colour, one.kind)))
        name = random.choice((shape, f"{colour} {shape}", f"{colour} {shape}"))
    question = _asked("is there", random, t=name).replace(f"a {name}", with_article(name))
    answer = f"Yes, there is {with_article(name)}." if name in names else f"No, there is no {name}."
    return Turn("is there", question, answer)


def _place(x: float, y: float) -> str:
    """Of nine places; empty between two of them."""
    across, down = (_third(value / 128) for value in (x, y))
    if not across or not down:
        return ""
    column, row = ("", "left", "centre", "right")[across], ("", "top", "centre", "bottom")[down]
    if column == row:
        return "in the centre"
    if row == "centre":
        return f"on the {column}"
    return f"at the {row}" if column == "centre" else f"at the {row} {column}"


def _third(share: float) -> int:
    return 1 if share < 0.34 else 2 if 0.41 < share < 0.59 else 3 if share > 0.66 else 0


def _asked(task: str, random: Random, **names: str) -> str:
    question = random.choice(WORDINGS[task]).format(**names)
    style = random.random()
    if style < 0.06:
        question = question.lower()
    if style > 0.94:
        question = question.rstrip("?.")
    if 0.5 < style < 0.53:
        question = question.replace("picture", "photo").replace("image", "photo")
    return question
