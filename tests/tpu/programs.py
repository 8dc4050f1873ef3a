"""Which programs there are: an optimizer with an option, on one chip or four, dense or by rows."""

from typing import NamedTuple

from support import cells, samples, tpu_traced

ROWS = 400_000  # of 128 numbers: such a table does not fit into a chip's fast memory
FEWER_ROWS = 100_000
SLICES = 256  # rows of each replica's gradient, which may repeat
CHIPS = (1, 4)
OF_ADAM = [option for option in cells.OPTIONS if option != "plain"]
WRAPPED = {"adam": tpu_traced.MORE, "lars": ("agn", "mixed_precision")}
# What breaks a promise on purpose, and the checks that must notice.
CONTROLS = {
    "a copy put in": {"copies"},
    "a sum left out": {"sums"},
    "a table made dense": {"rows"},
}


class Program(NamedTuple):
    """One step, lowered.

    Attributes:
        sample: the name of a row of `samples.py`.
        option: the name of one of `cells.OPTIONS`.
        how: what wraps it, of `tpu_traced.MORE`; None for nothing.
        replicas: on so many chips.
        dense: whether the table's gradient is dense; else it is row-sparse.
        rows: of the table.
        control: what is broken, of `CONTROLS`; None for nothing.
    """

    sample: str
    option: str = "plain"
    how: str | None = None
    replicas: int = 1
    dense: bool = False
    rows: int = ROWS
    control: str | None = None

    @property
    def row(self):
        """The optimizer and what it is given, wherever it runs."""
        more = [self.option] * (self.option != "plain") + [self.how] * bool(self.how)
        return ", ".join([self.sample, *more])

    @property
    def name(self):
        """All of it, without the number of the table's rows."""
        where = "one chip" if self.replicas == 1 else f"{self.replicas} chips"
        broken = f": {self.control}" if self.control else ""
        return f"{self.row}; {'dense' if self.dense else 'rows'}, {where}{broken}"

    @property
    def shapes(self):
        """Of the variables: next to the table the others do not count."""
        return {"table": (self.rows, 128), "kernel": (128, 128), "bias": (128,), "scale": ()}

    @property
    def by_rows(self):
        """Whether the step is to read and write the touched rows of the table alone."""
        sample = samples.BY_NAME[self.sample]
        return not self.dense and not cells.changes_all(sample, self.option)

    @property
    def frozen(self):
        """How many variables are not trained: their gradients are not summed over the chips."""
        multipliers = cells.OPTIONS[self.option].get("learning_rate_multipliers", {})
        return list(multipliers.values()).count(0)

    @property
    def makes_dense(self):
        """Whether the step makes a dense gradient of the table, which has to lie somewhere."""
        return self.replicas > 1 if self.dense else not self.by_rows

    def make(self, **more):
        """A new optimizer."""
        sample, options = samples.BY_NAME[self.sample], cells.OPTIONS[self.option] | more
        if self.how is None:
            return sample.make(name="optimizer", **options)
        return tpu_traced.MORE[self.how](sample, **options)


def rows_of(names=None, options=None, wrapped=None):
    """The (sample, option, wrapper) of the table; of those named alone.

    Left out, there are all optimizers alone, Adam with every option, and the wrappers.
    """
    chosen = [name for name in samples.BY_NAME if name in (names or samples.BY_NAME)]
    every = [(name, "plain", None) for name in chosen]
    every += [("adam", option, None) for option in OF_ADAM if "adam" in chosen]
    every += [(n, "plain", how) for n in WRAPPED if n in chosen for how in WRAPPED[n]]
    if options or wrapped:
        return [
            (name, option, how)
            for name in chosen
            for option in options or ["plain"]
            for how in wrapped or [None]
        ]
    return every


def programs(rows, chips=CHIPS):
    """The programs of rows of the table."""
    return [
        Program(*row, replicas=count, dense=dense)
        for row in rows
        for count in chips
        for dense in (False, True)
    ]


def controls():
    """Adam, broken."""
    return [Program("adam", replicas=CHIPS[-1], control=control) for control in CONTROLS]
