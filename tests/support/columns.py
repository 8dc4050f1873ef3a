"""Executions, each a place where the cells of the matrix are computed.

Imported by `strategy_cases.py` after the devices and the strategy are made.
"""

import keras
import tensorflow as tf
from tensorflow.experimental import dtensor

import tf_graft
from support import cells, samples
from tf_graft import dtensor as meshes

LAYOUTS = {
    "replicated": [None, None],
    "rows": ["x", None],
    "columns": [None, "y"],
    "both": ["x", "y"],
}
# A matrix whose halves are square: what SOAP makes of gradients without full rank is not defined.
ON_SHARDS = cells.SHAPES | {"kernel": (8, 4)}


class OneDevice:
    """Variables and steps of all options of a sample, in one device."""

    problem = cells.USUAL
    replicas = 1

    def __init__(self, wrap=lambda step: step):
        self.wrap = wrap

    def variables(self):
        return samples.variables(cells.weights(self.problem.shapes))

    def build(self, make):
        """An optimizer built for new variables."""
        model, optimizer = self.variables(), make()
        optimizer.build(list(model.values()))
        return optimizer, model

    def gradients(self, values, rows, model):
        return cells.as_gradients(values, rows)

    def values(self, option):
        """The arguments of a step for a cell: for each step, for each variable."""
        return [[tf.constant(values) for (values,) in step] for step in cells.shares(option, 1)]

    def rows(self):
        return tf.constant(cells.ids(1)[0])

    def step(self, built):
        """One step of all cells, a function of the values of each and of the rows."""

        def step(values, rows):
            for (optimizer, model), mine in zip(built, values, strict=True):
                optimizer.apply(self.gradients(mine, rows, model), list(model.values()))

        return self.wrap(step)

    def run(self, built, options):
        step, rows = self.step(built), self.rows()
        for values in zip(*(self.values(option) for option in options), strict=True):
            self.call(step, list(values), rows)

    def call(self, step, values, rows):
        step(values, rows)

    def judged(self, sample, option, optimizer, model):
        """The cells, by the name of their column; in most executions one."""
        found = cells.left_by(optimizer, model)
        return {"": cells.judged(sample, option, found, self.problem)}, found

    def refused(self, cell):
        return {"": cell}


class Replicas(OneDevice):
    """Under a strategy of several replicas, each with its share of the gradients."""

    def __init__(self, strategy, wrap=lambda step: step):
        super().__init__(wrap)
        self.strategy = strategy
        self.replicas = strategy.num_replicas_in_sync

    def build(self, make):
        with self.strategy.scope():
            return super().build(make)

    def distributed(self, values):
        return self.strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(values[context.replica_id_in_sync_group])
        )

    def values(self, option):
        return [
            [self.distributed(each) for each in step]
            for step in cells.shares(option, self.replicas)
        ]

    def rows(self):
        return self.distributed(cells.ids(self.replicas))

    def step(self, built):
        def on_replica(values, rows):
            for (optimizer, model), mine in zip(built, values, strict=True):
                optimizer.apply(self.gradients(mine, rows, model), list(model.values()))

        return self.wrap(lambda values, rows: self.strategy.run(on_replica, args=(values, rows)))

    def judged(self, sample, option, optimizer, model):
        for variable in [*optimizer.variables, *model.values()]:
            first, *others = self.strategy.experimental_local_results(variable.value)
            for other in others:
                assert first.numpy().tobytes() == other.numpy().tobytes(), variable.path
        return super().judged(sample, option, optimizer, model)


class Servers(OneDevice):
    """Variables on parameter servers, steps scheduled to the workers one after the other."""

    def __init__(self, strategy, shards: int):
        super().__init__()
        shapes = ON_SHARDS if shards > 1 else cells.SHAPES
        self.strategy, self.problem = strategy, cells.Problem(shapes=shapes, shards=shards)
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    def build(self, make):
        with self.strategy.scope():
            whole = self.variables()
            parts = tf_graft.shards(whole.values())
            optimizer = make()
            optimizer.build(parts)
        return optimizer, (whole, parts)

    def values(self, option):
        shares = cells.shares(option, 1, self.problem.shapes)
        return [[tf.constant(values) for (values,) in step] for step in shares]

    def step(self, built):
        def step(values, rows):
            for (optimizer, (whole, parts)), mine in zip(built, values, strict=True):
                with tf.GradientTape() as tape:
                    loss = sum(
                        tf.reduce_sum(
                            value * tf.nn.embedding_lookup(raw(whole[path]), rows)
                            if cells.row_sparse(path)
                            else value * tf.convert_to_tensor(whole[path].value)
                        )
                        for path, value in zip(whole, mine, strict=True)
                    )
                gradients = tape.gradient(loss, [raw(part) for part in parts])
                assert any(isinstance(g, tf.IndexedSlices) for g in gradients)
                optimizer.apply(gradients, parts)

        return tf.function(lambda *args: self.strategy.run(step, args=args))

    def call(self, step, values, rows):
        self.coordinator.schedule(step, args=(values, rows))
        self.coordinator.join()

    def judged(self, sample, option, optimizer, model):
        whole = cells.weights(self.problem.shapes)
        named = dict(zip(cells.split(whole, self.problem.shards), model[1], strict=True))
        return super().judged(sample, option, optimizer, named)


class Mesh(OneDevice):
    """Variables in four layouts on a 2 x 2 mesh, a cell for each layout.

    Eager, as the layout of a whole function takes a minute; functions: `mesh_cases.py`.
    """

    problem = cells.Problem(shapes=cells.ON_MESH, averages_whole_tables=True)

    def __init__(self):
        super().__init__()
        self.mesh = meshes.create_mesh({"x": 2, "y": 2})

    def layout(self, path, rank):
        specs = LAYOUTS[path.split("/")[0]][:rank]
        return dtensor.Layout([name or dtensor.UNSHARDED for name in specs], self.mesh)

    def variables(self):
        return {
            path: dtensor.DVariable(meshes.to_mesh(value, self.layout(path, value.ndim)), name=path)
            for path, value in cells.weights(self.problem.shapes).items()
        }

    def values(self, option):
        steps = []
        for step in cells.shares(option, 1, self.problem.shapes):
            named = zip(self.problem.shapes, step, strict=True)
            steps.append([meshes.to_mesh(v, self.placed(path, v.ndim)) for path, (v,) in named])
        return steps

    def placed(self, path, rank):
        """How a gradient lies: the slices of a table as a batch would leave them."""
        if cells.row_sparse(path):
            columns = self.layout(path, rank).sharding_specs[1]
            return dtensor.Layout(["x", columns], self.mesh)
        return self.layout(path, rank)

    def rows(self):
        return meshes.to_mesh(cells.ids(1)[0], dtensor.Layout(["x"], self.mesh))

    def gradients(self, values, rows, model):
        return cells.as_gradients(values, rows, self.problem.shapes)

    def judged(self, sample, option, optimizer, model):
        found = cells.left_by(optimizer, model, self.read)
        return {
            layout: cells.judged(sample, option, found, self.problem, only=f"{layout}/")
            for layout in LAYOUTS
        }, found

    def read(self, variable):
        return meshes.from_mesh(raw(variable).read_value()).numpy()

    def refused(self, cell):
        return dict.fromkeys(LAYOUTS, cell)


class Clients(Mesh):
    """On a mesh of two processes of two devices, a cell for all layouts."""

    def judged(self, sample, option, optimizer, model):
        found = cells.left_by(optimizer, model, self.read)
        return {"": cells.judged(sample, option, found, self.problem)}, found

    def refused(self, cell):
        return {"": cell}


def raw(variable):
    return variable.value if isinstance(variable, keras.Variable) else variable


def filled(place, sample, options):
    """(cells by column, digest) for each of a sample's options: all in one function."""
    built = {}
    for option in options:
        keras.utils.set_random_seed(0)
        try:
            built[option] = place.build(
                lambda option=option: sample.make(name="optimizer", **cells.OPTIONS[option])
            )
        except (TypeError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            yield place.refused(cells.Cell(sample.name, option, None, reason)), ""
    if built:
        place.run(list(built.values()), list(built))
    for option, (optimizer, model) in built.items():
        found, left = place.judged(sample, option, optimizer, model)
        averages = (left.averages or {}).values()
        yield found, cells.digest(*left.weights.values(), *averages, *left.state)
