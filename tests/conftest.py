"""Shared by all tests: shapes in signatures are checked at run time, and models are tiny."""

import gc
import io
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from beartype import beartype
from hypothesis import settings
from jaxtyping import install_import_hook
from tiers import pytest_collection_modifyitems  # noqa: F401  # a hook of pytest

from transformer.config.transformer import TransformerConfig

os.environ.setdefault("JAX_PLATFORMS", "cpu")

# A shell starts background jobs, such as these tests, with SIGINT ignored; tests of signals send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A random case may take any time: machines are busy, and the first one of a shape compiles.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# These tests mostly compile, so optimising programs would cost more than it saves.
# JAX_DISABLE_MOST_OPTIMIZATIONS=0 tests the optimised programs that users run.
unoptimised = os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1") == "1"
if unoptimised and version("jaxlib").startswith("0.10."):
    # XLA's older way to compile fused operations takes half as long; JAX 0.12 no longer has it. Splitting
    # these small programs, to compile their parts in parallel, costs more than it gains.
    os.environ["XLA_FLAGS"] = (
        f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_use_fusion_emitters=false "
        "--xla_cpu_parallel_codegen_split_count=1"
    )

# Many tests, the processes that they start and the next run compile the same programs: once is enough.
# Removing the folder is always safe.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    programs = Path(__file__).parent.parent / ".pytest_cache" / "programs"
    if programs.exists() and sum(file.stat().st_size for file in programs.iterdir()) > 2**30:
        shutil.rmtree(programs)
    programs.mkdir(parents=True, exist_ok=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(programs)
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"


UNCHECKED = tuple(f"transformer.{part}" for part in ("explorer", "training.methods", "plan"))
"""Packages that check what users give them, or read what other programs write."""


def check_signature(function: Callable[..., Any]) -> Callable[..., Any]:
    """Checks arguments and results, but not those of `__init__`: JAX rebuilds pytree dataclasses with mapped
    leaves, and shapes, shardings and None are not arrays."""
    is_exempt = function.__name__ == "__init__" or function.__module__.startswith(UNCHECKED)
    return function if is_exempt else beartype(function)


# Tracing makes many objects and hardly any garbage, which takes a tenth of the time to collect.
gc.set_threshold(200_000, 20, 1000)

# The hook rewrites modules as they are loaded, so it comes before anything that imports them.
# Of transformer.data only batching has shapes; in the grammar the checks would cost minutes.
install_import_hook(
    [
        "transformer.model",
        "transformer.training",
        "transformer.decoding",
        "transformer.data.plans",
        "transformer.systems",
        "transformer.translator",
    ],
    f"{__name__}.check_signature",
)


# JAX reads the environment that is set above when it is imported.
from transformer.runtime.program_store import use_whole_entries  # noqa: E402

use_whole_entries()  # one worker may read what another is writing


@pytest.fixture(scope="session")
def tiny() -> Callable[..., TransformerConfig]:
    """`tiny(**changes)`: 2+2 layers, width 16, 20 words, no dropout, with these changes."""

    def config(**changes: Any) -> TransformerConfig:
        sizes = {"num_layers": 2, "d_model": 16, "d_ff": 32, "num_heads": 2, "vocab_size": 20}
        return TransformerConfig(**{**sizes, "dropout": 0.0, **changes})

    return config


@pytest.fixture(scope="session")
def random_variables() -> Callable[..., Any]:
    """`random_variables(model, seed=0)`: random values for all parameters, including biases and norms, so
    that each matters. From NumPy, since compiling an initialisation takes seconds."""
    import jax

    def draw(model: Any, seed: int = 0) -> Any:
        rng = np.random.default_rng(seed)

        def leaf(path: Any, shape: Any) -> jax.Array:
            noise = 0.25 * rng.standard_normal(shape.shape, np.float32)
            return jax.numpy.asarray(noise + (path[-1].key == "scale"))

        ids = jax.ShapeDtypeStruct((1, 2), "int32")
        shapes = jax.eval_shape(model.init, jax.random.key(0), ids, ids)
        return jax.tree_util.tree_map_with_path(leaf, {"params": shapes["params"]})

    return draw


@pytest.fixture(scope="session")
def short_config(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The config of a training that takes seconds."""
    from small_run import small_config

    return small_config(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="session")
def config(short_config: Any) -> Any:
    """The same, which a file may change for its tests."""
    return short_config


@pytest.fixture(scope="session")
def finished(short_config: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The finished run of this training. Tests that change it copy it first."""
    from small_run import quiet

    from transformer.trainer.train import train

    return train(short_config, tmp_path_factory.mktemp("runs") / "finished", watch=quiet())


@pytest.fixture
def run_dir(finished: Path, tmp_path: Path) -> Path:
    """A copy of a finished run, which a test may change."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture(scope="session")
def untrained_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with the checkpoints 1, the best, and 2, for tests of commands. Tests that change it copy it."""
    from small_run import untrained

    return untrained(tmp_path_factory.mktemp("untrained") / "run")


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """`call(main, *arguments, stdin=b"")`: runs a command in this process, and returns its exit status,
    standard output and standard error."""

    def called(main: Callable[[], int], *arguments: object, stdin: bytes = b"") -> tuple[Any, str, str]:
        monkeypatch.setattr(sys, "argv", ["program", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        try:
            status = main()
        except SystemExit as stop:  # raised by tyro for --help and bad options
            status = stop.code  # type: ignore[assignment]
        return (status, *capfd.readouterr())

    return called


@pytest.fixture
def refused(call: Callable[..., Any]) -> Callable[..., str]:
    """`refused(main, *arguments, stdin=b"")`: the standard error of a command that ends with status 2."""

    def message(main: Callable[[], int], *arguments: object, stdin: bytes = b"") -> str:
        status, _, errors = call(main, *arguments, stdin=stdin)
        assert status == 2, errors
        return str(errors)

    return message


@pytest.fixture
def decode(call: Callable[..., Any]) -> Callable[..., Any]:
    """`decode(*arguments, stdin=b"")`: runs decode.py, as `call` does."""
    from transformer.commands.decode import decode_main

    return partial(call, decode_main)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of random parameters to decode with."""
    from small_translator import small_translator, stored

    return stored(small_translator(), tmp_path_factory.mktemp("decoder") / "run")


def what_is_compiled(config: Any) -> Any:
    """The config without what the programs of a training do not depend on: when it stops, evaluates and logs,
    and where its text is."""
    steps = config.training.steps if config.optimizer.schedule == "cosine" else 1
    times = {"evaluate_every": 1, "evaluate_sentences": 1, "log_every": 1, "keep_last": 1, "samples": 0}
    never = {"patience": None, "minutes": None, "save_minutes": None}
    paths = {name: Path("{corpus}") for name, value in vars(config.data).items() if isinstance(value, Path)}
    training = replace(config.training, steps=steps, epochs=None, **times, **never)
    return replace(config, training=training, data=replace(config.data, **paths))


@pytest.fixture(scope="session", autouse=True)
def trained_programs() -> Iterator[dict[Any, Any]]:
    """The programs of trainings by what determines them: a training with the config of an earlier one, such
    as one that resumes it, uses its programs."""
    from transformer.trainer import loop as module

    programs: dict[Any, Any] = {}
    initialise, configured_step = module.Loop.__init__, module.configured_step

    def remembering(loop: Any, config: Any, *given: Any) -> None:
        initialise(loop, config, *given)
        has_teacher = getattr(config.model, "teacher", None)  # whose parameters are in the program
        if has_teacher or module.configured_step is not configured_step:
            return
        steps = loop.train_step, loop.evaluator._step
        loop.train_step, loop.evaluator._step = programs.setdefault(what_is_compiled(config), steps)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.Loop, "__init__", remembering)
        yield programs


@pytest.fixture
def compiled() -> Iterator[list[str]]:
    """The compilation events of all programs since the start of the test."""
    import jax

    events: list[str] = []

    def listen(event: str, seconds: float, **_: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield events
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.fixture(scope="module", autouse=True)
def _compiled_programs_are_released(
    patched_modules: set[str], trained_programs: dict[Any, Any]
) -> Iterator[None]:
    """Drops compiled programs after a file that has patched what they were made of, and before they are too
    many. Files use the programs of others otherwise."""
    yield
    if any(name.startswith(TRACED) and not name.endswith(BESIDE) for name in patched_modules) or _is_large():
        import jax

        trained_programs.clear()
        jax.clear_caches()
        gc.collect()
    patched_modules.clear()


TRACED = (
    "jax.",
    "transformer.decoding",
    "transformer.model",
    "transformer.systems",
    "transformer.training.methods",
    "transformer.training.s",  # slices and step
)
"""What the names of modules begin with that programs are made of."""
BESIDE = (".api", ".service", ".task", ".writer")
"""What the names of modules of systems end with that programs are not made of."""


@pytest.fixture(scope="session")
def patched_modules() -> Iterator[set[str]]:
    """The modules of which tests of this file have patched something."""
    names, ordinary = set[str](), pytest.MonkeyPatch.setattr

    def noted(self: pytest.MonkeyPatch, target: Any, *given: Any, **options: Any) -> None:
        is_name = isinstance(target, str)
        module = target if is_name else getattr(target, "__module__", getattr(target, "__name__", ""))
        names.add(f"{module}." if module == "jax" else module)
        ordinary(self, target, *given, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pytest.MonkeyPatch, "setattr", noted)
        yield names


def _is_large() -> bool:
    """Whether this process has more than a sixth of the memory (at least 2 GiB, at most 4), or many memory
    mappings: a program takes about a dozen, and a process that reaches the limit of the kernel (65,530)
    crashes."""
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * page
        most = min(max(os.sysconf("SC_PHYS_PAGES") * page // 6, 2**31), 2**32)
        return resident > most or Path("/proc/self/maps").read_bytes().count(b"\n") > 40_000
    except OSError:  # another kernel
        return True
