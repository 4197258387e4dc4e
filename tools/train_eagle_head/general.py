"""General prompts of nine kinds: each a template whose slots are filled at random, thousands of ways in each."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence

_SLOT = re.compile(r"\{(\w+)\}")
_WORDS = {  # of each slot, apart by |; slots without: n, m and p are numbers; text, line and word of an excerpt
    "count": "two|three|four|five|six|seven|eight|ten|twelve",
    "name": "Anna|Ravi|Sofia|Liam|Chen|Fatima|Noah|Emma|Diego|Yuki|Omar|Grace|Ivan|Lucy|Samuel|Maria|Peter|Aisha",
    "surname": "Baker|Silva|Novak|Khan|Jensen|Rossi|Tanaka|Murphy|Weber|Okafor|Garcia|Lindberg|Moreau|Singh",
    "city": "Paris|Lagos|Lima|Kyoto|Boston|Prague|Cairo|Toronto|Madrid|Sydney|Berlin|Mumbai|Dublin|Chicago|Seoul",
    "country": "Brazil|Japan|Kenya|Canada|Egypt|India|Norway|Chile|Vietnam|Greece|Poland|Australia|Mexico|Turkey",
    "tongue": "French|German|Spanish|Italian|Portuguese|Dutch|Swedish|Polish",
    "month": "January|March|April|June|July|September|October|December",
    "weekday": "Monday|Tuesday|Wednesday|Thursday|Saturday",
    "job": "baker|teacher|nurse|sailor|painter|farmer|pilot|librarian|gardener|detective|carpenter|violinist|student|"
    "scientist|shepherd|postman|magician|cook|tailor|programmer",
    "animal": "dog|cat|parrot|bear|rabbit|turtle|dragon|horse|mouse|wolf|camel|penguin|crow|tiger|whale|hedgehog",
    "adjective": "small|tiny|green|broken|golden|heavy|quiet|strange|blue|wooden|beautiful|cheap|new|bright|lost",
    "object": "lamp|book|watch|chair|key|map|camera|basket|guitar|suitcase|phone|ring|kettle|kite|mirror|jacket",
    "place": "in the garden|at the station|near the river|in the kitchen|at school|in the forest|on the beach|behind "
    "the house|at the museum|in the mountains|on the farm|in the old tower",
    "moment": "this morning|yesterday|last winter|every evening|on {weekday}|in {month}|before lunch|after the storm",
    "did": "found|bought|repaired|lost|sold|painted|forgot|brought|hid|borrowed|cleaned|drew",
    "because": "because it was raining|so that everybody could see it|although nobody had asked|because the old one "
    "was broken|and then went home|while the others were asleep|because {name} needed help|and everyone laughed",
    "scene": "{name} {did} a {adjective} {object} {place} {moment}.|The {job} {did} the {adjective} {object} "
    "{because}.|The {animal} waited {place} until {name} came back.|My friend {name} works as a {job} in {city} and "
    "loves it.|We would like to visit {country} in {month} with {name}.|The shop in {city} opens at {count} and "
    "sells {plural}.|There were {count} {plural} {place}, and {name} took one.|Can you tell me where I can buy a "
    "{adjective} {object}?|The meeting with {name} is on {weekday} at {count}.|The {job} and the {animal} walked to "
    "{city} {moment}.|{name} wrote a letter to the {job} in {city} {because}.|A {animal} sat on the {adjective} "
    "{object}, and nobody dared to move.|In {month} the {plural} cost {n} dollars, which {name} thought too much.|"
    "Please bring the {adjective} {object} to {name} before {weekday}.|I could not sleep, since the {animal} made "
    "noise {place}.|The {job} from {country} has {count} children and a {animal}.",
    "plural": "apples|books|candles|shoes|bottles|tickets|flowers|coins|chairs|pencils|cakes|stamps|eggs|shirts",
    "phrase": "good night|thank you very much|where is the station|I am hungry|see you on {weekday}|never give up|"
    "the {animal} is {adjective}|my name is {name}|a {adjective} {object}|I love {city}|how much is it|yes we can",
    "topic": "photosynthesis|gravity|democracy|inflation|evolution|electricity|the immune system|climate change|"
    "artificial intelligence|a black hole|the water cycle|the internet|jazz|meditation|DNA|a volcano|recycling|the "
    "Roman Empire|the French Revolution|quantum mechanics|a blockchain|renewable energy|the human heart|insulin|a "
    "metaphor|supply and demand|machine learning|the solar system|an earthquake|a vaccine|yoga|the Renaissance|an "
    "operating system|a database|recursion|encryption|object-oriented programming|a compiler|cloud computing|a "
    "neural network|an API|version control|a binary tree|a linked list|the stock market|a haiku|sleep|vitamin C|"
    "photography|solar energy|nutrition|a poem|gravity waves|the Silk Road|ancient Egypt|a spreadsheet|stress|"
    "teamwork|a good habit|the ozone layer|plastic|coral reefs|the Industrial Revolution|human rights|marketing|a "
    "mortgage|calculus|probability",
    "machine": "a microwave oven|a bicycle|an airplane|a battery|a telescope|a camera|a solar panel|an elevator|a "
    "car engine|a search engine|a wind turbine|a submarine|a printer|an electric motor|a piano|GPS|Wi-Fi|a washing "
    "machine",
    "why": "do leaves change their colour|is the sea salty|do we dream|do cats purr|does ice float|do we have "
    "seasons|do birds migrate|is exercise good for us|do people yawn|is the Moon round|does bread rise|do stars "
    "twinkle|do onions make us cry|is honey sweet|did the dinosaurs die out|do we need sleep|is reading important",
    "pair": "a virus and a bacterium|a lake and a pond|HTTP and HTTPS|a list and a tuple|weather and climate|RAM and "
    "ROM|a crocodile and an alligator|a comet and an asteroid|SQL and NoSQL|a process and a thread|coffee and tea|a "
    "stack and a queue|mass and weight|frontend and backend|a democracy and a monarchy|an atom and a molecule",
    "things": "animals|countries|books|vegetables|planets|sports|inventions|cities|musical instruments|colours|"
    "hobbies|programming languages|rivers|desserts|jobs|movies|birds|trees|healthy breakfasts|games|drinks",
    "property": "size|price|origin|name|weight|year|rating|capital|category|age",
    "hobby": "gardening|cooking|chess|swimming|photography|painting|running|singing|knitting|cycling|reading|fishing|"
    "astronomy|baking|dancing|camping|the guitar|writing|English|drawing|yoga|tennis",
    "plan": "a trip to {city}|a dinner for {count} friends|my week|a healthy breakfast|a job interview|a small "
    "garden|a wedding|a speech about {topic}|a study plan|my budget|a weekend in {country}|a school project about "
    "{topic}",
    "mood": "tired|happy|bored|a little sad|excited|nervous|lonely|very busy|proud|confused",
    "deed": "finds a {adjective} {object}|wants to see {city}|is afraid of the dark|loses a {object}|meets a "
    "{animal}|learns {hobby}|travels to {country}|saves a {animal}|cannot sleep|discovers a secret door|wins a race|"
    "makes a new friend|gets lost {place}|hears music {place}|wakes up as a {animal}|opens a small shop",
    "code": "Python|JavaScript|Java|C|C++|Go|Rust|Ruby|TypeScript|Python|Python|JavaScript",
    "task": "sorts a list of numbers|checks whether a word is a palindrome|counts the vowels of a string|finds the "
    "largest of three numbers|computes the factorial of n|reads a file line by line|removes duplicates from a list|"
    "checks whether a number is prime|converts Celsius to Fahrenheit|merges two dictionaries|prints the Fibonacci "
    "numbers|computes the average of a list|counts the words of a text|finds the second largest number|rounds prices|"
    "validates an email address|generates a random password|finds the common elements of two lists|flattens a nested "
    "list|capitalizes every word|computes the area of a circle|parses a date|groups {plural} by {property}|downloads "
    "a web page|implements binary search|returns the {property} of {plural}|finds all {plural} in a list",
    "class": "a stack|a queue|a rectangle|a library of books|a student|a shopping cart|a linked list|a timer|a car|a "
    "to-do list|a playlist|a matrix|an address book|an inventory of {plural}",
    "shell": "backs up a folder|deletes empty files|counts the lines of all text files|finds files larger than 10 MB|"
    "prints the free disk space|compresses old logs|lists all users|pings a server|moves pictures to another folder|"
    "restarts a service|downloads a file|searches for a word in all files",
    "keys": "name, {property} and {property}|title and {property}|name and city|item, price and quantity|who, where "
    "and when|object and owner",
    "field": "medicine|school|business|daily life|farming|space travel|cooking|sports|music|city planning|biology|"
    "software",
    "reader": "a child|a beginner|my grandmother|a student|an expert|a farmer|someone in a hurry|a new colleague",
    "style": "| Keep it short.| Use no library.| With comments.| Explain it.| Show an example of its use.| With a "
    "test.",
    "manner": "|| Be brief.| Answer in one sentence.| Explain it step by step.| Give an example.| In simple words, "
    "please.",
}  # fmt: skip
_TEMPLATES = {
    "code": "Write a {code} function that {task}.{style}|Write a {code} program that {task}.{style}|Write a {code} "
    "class for {class}.{style}|Write a shell script that {shell}.|How do I write a loop in {code} that prints the "
    "numbers from {n} to {m}?|Give me an example of {topic} in {code}.|Write a {code} function that {task}, and "
    "explain it.|Show me how to write a function in {code} which {task}.|Write an SQL query that returns all "
    "{plural} with a {property} above {n}.|Write a regular expression for {things}.|Write a test in {code} for a "
    "function that {task}.|Write an HTML page with a list of {count} {things}.|Explain this: {line}",
    "summary": "Summarize: {text}|Summarize the following text in one sentence.\n\n{text}|What is this "
    "about?\n{text}|Summarize: {scene} {scene} {scene}|Give me the main points of this text:\n\n{text}|Write a title "
    "for: {text}|Summarize the following text in one sentence.\n\n{scene} {scene} {scene} {scene}|Shorten this: "
    "{text}|What is this about?\n{scene} {scene} {scene}|Rewrite this in simple words: {text}|tl;dr: {text}",
    "question": "What is {topic}?{manner}|What is {topic} and what is it good for?|How does {machine} work?{manner}|"
    "Why {why}?{manner}|What is the difference between {pair}?{manner}|Explain {topic} to a child.|What is the "
    "capital of {country}?|List {count} {things}.|What are the advantages of {hobby}?|Who invented {machine}?|Tell "
    "me about {country}.|What should I know about {topic}?|Name {count} {things} and say why they are well known.|"
    "How do I start {hobby}?|What does '{word}' mean here? {line}|Write a paragraph about {topic}.|Explain {topic} "
    "to {reader}.|How is {topic} used in {field}?|What would the world be without {topic}?|Compare {country} and "
    "{country}.|What does {topic} have to do with {field}?|Give {reader} {count} facts about {topic}.|What does a "
    "{job} do all day in {country}?|Can a {animal} live {place}?|Why do people in {country} like {hobby}?|What is "
    "the history of {topic} in {country}?|How do I explain {machine} to {reader}?|Which {things} are best for "
    "{reader}?|What are the causes of {topic}, and what are its effects on {field}?|List {count} {things} from "
    "{country}.",
    "translation": "Translate to {tongue}: {scene}|Translate the following sentence to {tongue}: {scene}|How do you "
    "say '{phrase}' in {tongue}?|Translate to {tongue}: {scene} {scene}|What is '{phrase}' in {tongue}?|Translate "
    "into {tongue}: {line}|Please translate this to {tongue}:\n{scene}|What is the {tongue} word for {object}?",
    "story": "Write a short story about a {job} who {deed}.|Tell me a story about a {animal} that {deed}.|Continue "
    "the story: {scene}|Write a poem about a {adjective} {object}.|Write a story about {name} and a {animal}.|Write "
    "a short story about {count} friends who open a {adjective} shop in {city}.|Begin a story with: {scene}|Write a "
    "fairy tale about a {adjective} {animal}.|Write a letter from {name} to {name} about {city}.|Write a dialogue "
    "between a {job} and a {animal}.",
    "mathematics": "What is {n} + {m}?|What is {n} * {p}?|What is {m} - {n}?|Compute {m} / {p}.|What is {p}% of {n}?|"
    "{name} has {m} {plural} and gives {p} of them to {name}. How many are left?|A {object} costs {p} dollars. How "
    "much do {n} of them cost?|A {job} sells {n} {plural} on {weekday} and {m} on {weekday}. Each costs {p} dollars. "
    "How much does the {job} earn?|A car drives {n} miles an hour for {p} hours. How far does it go?|What is the "
    "area of a rectangle of {n} by {p} meters?|Solve for x: {p}x + {n} = {m}.|{name} reads {p} pages a day. How many "
    "days does a book of {m} pages take?|Half of the {m} {plural} are {adjective}, and {p} of these are sold. How "
    "many remain?|Is {n} a prime number?|What is the average of {n}, {m} and {p}?|{line}",
    "chat": "Hello! I am {mood} today.|Hi, can you help me to plan {plan}?|I am learning {hobby}. Do you have any "
    "tips?|Hello, my name is {name}. What is yours?|I would like to talk about {hobby}.|Good evening! How are you?|"
    "What do you think about {hobby}?|I feel {mood}. What should I do?|Can you recommend {count} {things}?|Thank "
    "you!|Hi! I live in {city} and like {hobby}.|What can you tell me about yourself?|Tell me a joke about a "
    "{animal}.|My {animal} is {adjective}. Is that normal?|I had a long {weekday} with {plural}.|Write an email to "
    "{name} about {plan}.|Give me some advice on {plan}.|I have {n} {plural} {place}. What can I do with them?|Hi, I "
    "am {name} from {city}, and I feel {mood}.|I would like to learn {hobby} in {month}. Where do I begin?|My friend "
    "{name} is {mood}. How can I cheer them up?|Do you know {country}? I will be there in {month}.|I work as a {job} "
    "and am {mood}. Any ideas for {weekday}?|Guess what: {scene}|Hello! {scene}|I am thinking about {plan}. What "
    "would a {job} do?|What gift would a {job} who likes {hobby} enjoy?|Hey, tell me something about {topic}.|Let us "
    "talk about {country} and {hobby}.",
    "JSON": 'Return a JSON object with the name, age and city of this person: {name} is {n} and lives in {city}.|'
    'Answer in JSON with the keys "name" and "text": {line}|Give me a JSON list of {count} {things} with their '
    '{property}.|Extract as JSON: order {m}{p}, {count} {plural} at {n}.50 each, to be delivered to {city} in '
    '{month}.|Return a JSON object with {keys}: {scene}|Write this as JSON: {name} {surname}, {job}, {n} years old, '
    'from {country}.|Extract the {keys} as JSON from: {scene}|Answer only in JSON. What is {topic}?{manner}|Make a '
    'JSON array of {count} {things}.|Write a JSON file with {count} {plural}, each with {keys}.|Convert to JSON: '
    '{line}',
    "repetition": "Repeat this: {scene}|Say it again, word by word:\n{scene}|Write '{phrase}' {count} times.|Repeat "
    "the following {count} times: {phrase}.|Repeat this: {line}|Copy this text:\n{scene} {scene}|Count from {p} to "
    "{n}.|Write the numbers from {p} to {n}, apart by commas.|Repeat after me: {phrase}.|Write the text again "
    "without any change:\n\n{text}|Spell the word {object}.|Say '{phrase}' again and again.",
}  # fmt: skip
_CHOICES = {name: words.split("|") for name, words in _WORDS.items()}
_FORMS = {kind: forms.split("|") for kind, forms in _TEMPLATES.items()}


def general_prompts(excerpts: Sequence[str], count: int, chosen: random.Random) -> Iterator[tuple[str, str]]:
    """Kind and text of `count` prompts, all kinds alike. excerpts: of texts that some of them are about."""
    for number in range(count):
        kind = list(_FORMS)[number % len(_FORMS)]
        yield kind, _filled(chosen.choice(_FORMS[kind]), excerpts, chosen)


def _filled(form: str, excerpts: Sequence[str], chosen: random.Random) -> str:
    excerpt = line = ""
    if "{text}" in form or "{line}" in form:
        excerpt = " ".join(chosen.choice(excerpts).split()[: chosen.randint(30, 150)])
        line = chosen.choice(re.split(r"(?<=[.?!]) ", excerpt))[:300]
    words = [word for word in re.findall(r"[A-Za-z]+", line) if len(word) > 3] or ["time"]
    numbers = {"n": (11, 60), "m": (61, 120), "p": (2, 10)}

    def word(slot: re.Match[str]) -> str:
        name = slot[1]
        if name in numbers:
            return str(chosen.randint(*numbers[name]))
        if name in _CHOICES:
            return _SLOT.sub(word, chosen.choice(_CHOICES[name]))
        return {"text": excerpt, "line": line, "word": chosen.choice(words)}[name]

    text = _SLOT.sub(word, form)
    return text[:1].upper() + text[1:]
