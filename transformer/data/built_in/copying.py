"""Built-in corpora whose answers have words of the line: greetings with names, and numbers and points.

dialogue: people introduce themselves and are answered by name.

    Hello, I am Kuroro.        Hello Kuroro, nice to meet you.
    你好，我是库洛洛。             库洛洛你好，很高兴认识你。

The answer is a function of the greeting. There are tens of thousands of names. A hash assigns each name (in
Chinese, each character of a name) to one split, so that the splits share none.

sorting and convex-hull, for pointer networks:

    17 4 88 4               4 4 17 88
    c7 a1 e2 b3 d9          a1 e2 d9 c7

sorting: numbers from 0 to 99, in ascending order; a number may be repeated. convex-hull: different points of
a 16 x 16 grid; the column is a letter from a to p, the row a number from 1 to 16, upwards. The answer has the
vertices of the hull counter-clockwise, from the leftmost, and of these the lowest, point. Points inside an
edge are not vertices, so the hull of points on one line has its two ends.
"""

import itertools
import random
from collections.abc import Callable, Iterator, Sequence

from transformer.data.built_in.generated import SENTENCES, SHARES, Pair, split_of
from transformer.runtime.errors import UserError

DIALOGUE_VERSION = 1
"""Of what this generates: whoever changes that raises it (`corpora.BuiltIn`)."""
PATTERNS = {language: SENTENCES[f"greetings {language}"] for language in ("en", "zh")}
"""Greeting, answer, and the words for {x}; {a} and {b} are names."""

_ONSETS = [*"bcdfghjklmnprstvwyz", "br", "ch", "dr", "fl", "gr", "kl", "sh", "st", "tr"]
_VOWELS = [*"aeiou", "ai", "ea", "ee", "ia", "io", "oo", "ou"]
_ENDS = ["", "", "n", "r", "s", "l", "th", "m"]
_CHARACTERS = (
    "安柏碧博彩灿昌超琛辰诚楚川春慈聪翠达丹德迪蒂蝶东端敦尔恩法凡芳菲斐风枫凤弗芙福甘刚戈格根冠光广贵桂国哈海涵汉翰豪浩合河荷赫鹤"
    "亨恒弘红宏洪虎华怀辉惠慧吉季加佳嘉坚健江娇杰洁捷金锦晋京晶景静娟军君俊卡凯康柯科克孔库坤奎兰岚浪雷蕾黎李力立丽利莉连莲良"
    "亮列林霖琳玲灵凌龙隆露卢鲁陆路伦罗洛绿玛麦曼茂梅美蒙孟梦米密苗敏铭墨默姆木慕娜南楠尼妮宁诺欧帕潘佩彭鹏平普琪奇琦启千倩乔"
    "钦琴青清庆琼秋泉群然仁荣容如儒瑞睿若萨塞森沙珊善尚绍申诗石实世舒曙树双顺思斯松苏素塔泰谭唐涛特滕廷通婷维伟卫文雯沃武希西"
    "熙霞贤香祥翔萧晓欣新馨星雄秀旭轩雪勋雅亚妍岩彦燕扬阳杨瑶耀叶依怡宜义艺毅银英颖瑛永勇宇玉育钰裕元园媛远岳悦云芸韵泽占"
    "哲贞珍振正之芝志智忠仲竹庄卓姿子紫宗祖尊佐"
)


def dialogue_pairs(language: str, split: str, seed: int = 0) -> Iterator[Pair]:
    """Yields greetings and answers endlessly, the same for the same seed, without repeating a greeting.

    Args:
      language: "en" or "zh".
      split: "train", "validation" or "test"; their names are disjoint.
    """
    chance = random.Random(f"{language} {split} {seed}")
    names = _english_names(chance, split) if language == "en" else _chinese_names(chance, split)
    seen = set()
    while True:
        said, answered, words = chance.choice(PATTERNS[language])
        a, b = itertools.islice(names, 2)
        word = chance.choice(words.split("|"))
        source = said.format(a=a, b=b, x=word)
        if source not in seen and a != b:
            seen.add(source)
            yield source, answered.format(a=a, b=b, x=word)


def _english_names(chance: random.Random, split: str) -> Iterator[str]:
    while True:
        syllables = chance.choice((1, 2, 2, 3))
        parts = (chance.choice(_ONSETS) + chance.choice(_VOWELS) for _ in range(syllables))
        name = ("".join(parts) + chance.choice(_ENDS)).capitalize()
        if len(name) > 2 and split_of(name) == split:
            yield name


def _chinese_names(chance: random.Random, split: str) -> Iterator[str]:
    characters = [character for character in _CHARACTERS if split_of(character) == split]
    while True:
        yield "".join(chance.choice(characters) for _ in range(chance.choice((2, 2, 3))))


# Sorting, and convex hulls.


POINTING_VERSION = 1
"""Of what this generates: whoever changes that raises it (`corpora.BuiltIn`)."""
Point = tuple[int, int]
LENGTHS = range(5, 13)  # words of a line, unless asked otherwise
LARGEST = 99
SIDE = 16
COLUMNS = "abcdefghijklmnop"


def sorting(chance: random.Random, length: int) -> Pair:
    """Numbers, and the same in order."""
    numbers = [chance.randint(0, LARGEST) for _ in range(length)]
    return " ".join(map(str, numbers)), " ".join(map(str, sorted(numbers)))


def convex_hull(chance: random.Random, length: int) -> Pair:
    """Points, and the vertices of their hull."""
    cells = chance.sample(range(SIDE * SIDE), length)
    points = [divmod(cell, SIDE) for cell in cells]
    return " ".join(map(name, points)), " ".join(map(name, hull(points)))


def name(point: Point) -> str:
    """The word of a point: (2, 6) is c7."""
    return f"{COLUMNS[point[0]]}{point[1] + 1}"


def hull(points: Sequence[Point]) -> list[Point]:
    """The vertices of the convex hull, counter-clockwise from the smallest point (Andrew 1979).

    Args:
      points: different points, at least one.
    """
    ordered = sorted(points)
    below, above = _chain(ordered), _chain(ordered[::-1])
    return below[:-1] + above[:-1] or ordered


def _chain(ordered: Sequence[Point]) -> list[Point]:
    """Half of a hull, from the first point to the last: every turn goes left."""
    hull: list[Point] = []
    for point in ordered:
        while len(hull) > 1 and turn(hull[-2], hull[-1], point) <= 0:
            hull.pop()
        hull.append(point)
    return hull


def turn(a: Point, b: Point, c: Point) -> int:
    """Twice the area of a triangle: positive if a, b, c turn left, 0 if they are on one line."""
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


TASKS: dict[str, Callable[[random.Random, int], Pair]] = {"sorting": sorting, "convex-hull": convex_hull}


def pointing_pairs(task: str, split: str, seed: int = 0, lengths: Sequence[int] = LENGTHS) -> Iterator[Pair]:
    """Yields lines and answers endlessly, the same for the same arguments, without repeating a line.

    Args:
      task: "sorting" or "convex-hull".
      split: "train", "validation" or "test". A hash of the words, whatever their order, decides in which
        split a line is.
      seed: of the random numbers.
      lengths: the numbers of words to choose from. There must be far more lines of these lengths than are
        taken; convex-hull has lines of up to 256 words.

    Raises:
      UserError: there is no such task or split.
    """
    if task not in TASKS or split not in SHARES:
        raise UserError(
            f"no {split} split of the corpus {task}: there are {', '.join(TASKS)}, each with "
            f"{', '.join(SHARES)}"
        )
    chance, seen = random.Random(f"{task} {split} {seed}"), set[str]()
    while True:
        source, target = TASKS[task](chance, chance.choice(lengths))
        if source not in seen and split_of(" ".join(sorted(source.split()))) == split:
            seen.add(source)
            yield source, target
