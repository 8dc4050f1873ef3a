"""A model with another vocabulary takes over a file: its weights and its optimizer's state."""

import contextlib
import os
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import keras
import numpy as np

from tf_graft.core import checks, keras_contract
from tf_graft.core.errors import CheckpointError
from tf_graft.core.files import former_file
from tf_graft.core.files.row_map import RowMap
from tf_graft.core.optimizer import Optimizer

__all__ = ["former_rows", "load"]

LOOKUPS = (keras.layers.StringLookup, keras.layers.IntegerLookup)
OTHERS = (".h5", ".hdf5", ".json")  # files of Keras, but for those that it writes today

Vocabulary: TypeAlias = Sequence[Hashable] | keras.layers.StringLookup | keras.layers.IntegerLookup
Rows: TypeAlias = np.ndarray | Sequence[int] | tuple[Vocabulary, Vocabulary]


def former_rows(former: Vocabulary, present: Vocabulary) -> np.ndarray:
    """Returns the row that each present token had in the table of a former vocabulary.

    Args:
        former: the former vocabulary: tokens in the order of the rows, or a lookup layer. A
            layer's rows include those for masks and for tokens that are out of its vocabulary; of
            the latter, the first is mapped to the first, the second to the second.
        present: the present vocabulary, likewise.

    Returns:
        For each present row, the number of the former one; -1 for a new token. An int64 array of
        shape [present rows].

    Raises:
        TypeError: a vocabulary is neither a list of tokens nor a lookup layer.
        ValueError: a token occurs twice.

    Example:
        >>> former_rows(["cat", "dog", "owl"], ["ant", "cat", "owl"]).tolist()
        [-1, 0, 2]
    """
    layers = isinstance(former, LOOKUPS) and isinstance(present, LOOKUPS)
    rows = {token: row for row, token in enumerate(_tokens("former", former, layers))}
    found = (rows.get(token, -1) for token in _tokens("present", present, layers))
    return np.array([*found], np.int64)


def load(model: keras.Model, filepath: str | os.PathLike[str], rows: Mapping[str, Rows]) -> None:
    """Loads a file of a model with other vocabularies: the rows of each token, wherever they are.

    Weights and all state that the optimizer has for each row go with the token: momenta, squares,
    averages, accumulated gradients, the float32 master weights of half-precision variables.
    Everything else is loaded as it is, the count of updates included. A row without a former one
    keeps the weights that it has in `model`, and its state is that of the start, as
    `Optimizer.reset_rows` leaves it. Former rows that `rows` does not name are dropped, so that a
    vocabulary can also shrink. The file is only read. If anything in it does not fit, nothing
    changes. If it has no state of an optimizer, a warning says so, and the weights alone are
    loaded.

    Args:
        model: the model with the present tables, built; compiled with the optimizer of the file,
            or not compiled, to load weights alone.
        filepath: the file of the former model, `.keras` or `.weights.h5`, or the prefix of a
            `tf.train.Checkpoint(model=model)`.
        rows: a dict from each table's path, or the end of it, such as `"embedding/embeddings"`, to
            what `former_rows` returns, or to the two vocabularies, with which `former_rows` is then
            called.

    Raises:
        TypeError: an argument of the wrong type; the model has an optimizer of Keras' own.
        ValueError: the model is not built, or one within it has an optimizer of its own; a path is
            not that of one variable; a map is not as long as its table.
        CheckpointError: the file cannot be read, a map names a row that the file does not have, a
            variable that `rows` does not name has another shape in it, or it holds the state of
            another optimizer.

    Example:
        >>> import pathlib, tempfile
        >>> def table(rows):
        ...     return keras.Sequential([keras.Input([]), keras.layers.Embedding(rows, 1)])
        >>> former, present = table(2), table(3)
        >>> former.set_weights([np.float32([[5], [6]])])
        >>> present.set_weights([np.float32([[1], [2], [3]])])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder) / "former.weights.h5"
        ...     former.save_weights(file)
        ...     load(present, file, {"embeddings": (["cat", "dog"], ["ant", "cat", "dog"])})
        >>> present.get_weights()[0].tolist()
        [[1.0], [5.0], [6.0]]
    """
    owner = "vocabulary.load"
    checks.instance(owner, "model", model, keras.Model)
    if not model.built:
        raise ValueError(f"{owner}: the model is not built; call it on some data first.")
    _refuse_inner_optimizers(owner, model)
    maps = _maps(owner, model, rows)
    name = os.fspath(filepath)
    if name.endswith(OTHERS) and not name.endswith(".weights.h5"):
        raise ValueError(
            f"{owner}: '{name}' must be a .keras or .weights.h5 file, or a TensorFlow checkpoint."
        )
    optimizer = _built_optimizer(owner, model)
    tables = {} if optimizer is None else _updated(optimizer, model, maps)
    try:
        with keras_contract.all_or_nothing(model), _mapping(optimizer, tables):
            former_file.take_over(model, name, maps)
            if optimizer is not None:
                for table, its_rows in tables.values():
                    optimizer.reset_rows(table, its_rows.new)
    except CheckpointError as error:
        raise CheckpointError(f"{owner}: {error}") from None


def _refuse_inner_optimizers(owner: str, model: keras.Model) -> None:
    """Refuses a model in which another one has an optimizer, whose state would not be mapped.

    Raises:
        ValueError: there is such a model.
    """
    own = getattr(model, "optimizer", None)
    for layer in keras_contract.layers_of(model):
        if getattr(layer, "optimizer", None) not in (None, own):
            raise ValueError(
                f"{owner}: '{layer.name}' in the model has an optimizer of its own; save the "
                f"weights of '{layer.name}' alone, and load them into such a model."
            )


def _tokens(name: str, vocabulary: Vocabulary, layers: bool) -> list[Hashable]:
    """Returns the tokens of a vocabulary by row.

    Args:
        name: the argument, for messages.
        vocabulary: the vocabulary.
        layers: whether both vocabularies are layers.

    Raises:
        TypeError: it is no vocabulary.
        ValueError: a token occurs twice.
    """
    if isinstance(vocabulary, LOOKUPS):
        return _of_lookup(vocabulary, layers)
    given = vocabulary.tolist() if isinstance(vocabulary, np.ndarray) else vocabulary
    refusal = f"former_rows: {name} is {{}}; it must be a list of tokens or a lookup layer."
    tokens = [_plain(token) for token in checks.listed(refusal, given)]
    seen: dict[Hashable, int] = {}
    for row, token in enumerate(tokens):
        if not isinstance(token, Hashable):
            raise TypeError(refusal.format(f"a list of {checks.shown(token)}"))
        if seen.setdefault(token, row) != row:
            raise ValueError(
                f"former_rows: {name} has the token {token!r} in the rows {seen[token]} and {row}; "
                "it must have each token once."
            )
    return tokens


def _of_lookup(
    layer: keras.layers.StringLookup | keras.layers.IntegerLookup, layers: bool
) -> list[Hashable]:
    """Returns the tokens of a layer; after the first row out of its vocabulary, with a number.

    Beside another layer, which may spell them differently, the rows for masks and for what is out
    of the vocabulary have numbers in place of tokens.
    """
    tokens = [_plain(token) for token in layer.get_vocabulary()]
    unknown = [row for row, token in enumerate(tokens) if token == layer.oov_token]
    for number, row in enumerate(unknown):
        if layers or number:
            tokens[row] = ("unknown", number)
    if layers and layer.mask_token is not None:
        tokens[tokens.index(layer.mask_token)] = ("mask", 0)
    return tokens


def _plain(token: Any) -> Any:
    """Returns a token as Python has it; bytes, of which TensorFlow makes texts, as a text."""
    token = token.item() if isinstance(token, np.generic) else token
    with contextlib.suppress(UnicodeDecodeError):
        return token.decode() if isinstance(token, bytes) else token
    return token


def _maps(owner: str, model: keras.Model, rows: Mapping[str, Rows]) -> dict[str, RowMap]:
    """Returns the maps by the full paths of their tables.

    Raises:
        TypeError, ValueError: see `load`.
    """
    if not isinstance(rows, Mapping):
        raise TypeError(f"{owner}: rows is {checks.shown(rows)}; it must map paths to row numbers.")
    maps: dict[str, RowMap] = {}
    for path, given in rows.items():
        table = _table(owner, model, path)
        if table.path in maps:
            raise ValueError(f"{owner}: rows has two maps of '{table.path}'; give one.")
        maps[table.path] = RowMap(table.path, _numbers(owner, table, given))
    return maps


def _table(owner: str, model: keras.Model, path: str) -> keras.Variable:
    """Returns the only weight with a path, or with one that ends so."""
    named = [v for v in model.weights if v.path == path] or [
        v for v in model.weights if v.path.endswith(f"/{path}")
    ]
    if len(named) != 1:
        listed = ", ".join(f"'{v.path}'" for v in (named or model.weights))
        raise ValueError(
            f"{owner}: rows has the path '{path}', and {len(named) or 'none'} of the model's "
            f"weights have it; give one of {listed}."
        )
    return named[0]


def _numbers(owner: str, table: keras.Variable, given: Rows) -> np.ndarray:
    """Returns the numbers of a table's former rows.

    Raises:
        TypeError, ValueError: they are none.
    """
    pair = isinstance(given, tuple) and len(given) == 2 and not any(map(_is_number, given))
    try:
        numbers = former_rows(*given) if pair else np.asarray(given)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{owner}: rows['{table.path}']: {error}") from None
    if numbers.ndim != 1 or not np.issubdtype(numbers.dtype, np.integer):
        raise TypeError(
            f"{owner}: rows['{table.path}'] is {checks.shown(given)}; it must be a list of row "
            "numbers, or the former and the present vocabulary."
        )
    count = table.shape[0] if len(table.shape) else 0
    if len(numbers) != count:
        raise ValueError(
            f"{owner}: rows['{table.path}'] has {len(numbers)} rows, and the table has {count}."
        )
    if numbers.size and numbers.min() < -1:
        raise ValueError(
            f"{owner}: rows['{table.path}'] has the row {numbers.min()}; a row must be at least 0, "
            "or -1 for none."
        )
    return numbers.astype(np.int64)


def _is_number(value: object) -> bool:
    return isinstance(value, int | np.integer)


def _built_optimizer(owner: str, model: keras.Model) -> Optimizer | None:
    """Returns the optimizer of a model, built; None if the model is not compiled.

    Raises:
        TypeError: it is one of Keras' own.
    """
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        return None
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            f"{owner}: the model has the optimizer {checks.shown(optimizer)}; its state cannot be "
            "mapped, so compile the model with an optimizer of tf_graft."
        )
    if not optimizer.built:
        optimizer.build(model)
    return optimizer


Tables: TypeAlias = dict[str, tuple[keras.Variable, RowMap]]


def _updated(optimizer: Optimizer, model: keras.Model, maps: Mapping[str, RowMap]) -> Tables:
    """Returns the tables that an optimizer updates, with their maps, by its paths for them."""
    tables = {id(keras_contract.storage(v)): v for v in model.weights if v.path in maps}
    of_optimizer = {
        p.path: id(keras_contract.storage(p.variable)) for p in optimizer.state.parameters
    }
    return {
        path: (tables[number], maps[tables[number].path])
        for path, number in of_optimizer.items()
        if number in tables
    }


@contextlib.contextmanager
def _mapping(optimizer: Optimizer | None, tables: Tables) -> Iterator[None]:
    """A context in which an optimizer maps the rows of its state for tables when it loads it."""
    if optimizer is None:
        yield
        return
    maps = {
        name: rows for path, (_, rows) in tables.items() for name in optimizer.state.with_rows(path)
    }
    with optimizer.saved.mapping(maps):
        yield
