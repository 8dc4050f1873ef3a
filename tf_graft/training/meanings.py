"""What each key of a config means, by section; the class in `schema` has its type and default."""

MEANINGS: dict[str, dict[str, str]] = {
    "Data": {
        "name": "`digits`, `text`, or a name of tensorflow-datasets",
        "dir": (
            "the folder of prepared data sets; `TFDS_DATA_DIR` or `~/.cache/tf_graft/datasets`"
        ),
        "batch_size": "the number of examples in a batch, for all replicas or workers together",
        "shuffle_buffer": "the number of examples from which the next one is drawn",
        "train": "the split to train on, or a part of it: `train[:35%]`",
        "test": "the split to test on after each epoch",
        "classes": (
            "the classes to learn, numbered from 0 in this order; examples of others are left out"
        ),
        "sequence_length": "the length of texts, in characters or words",
        "vocabulary": "the number of ids; words are hashed to them",
        "image_size": "the size to which images are resized",
    },
    "Mlp": {
        "name": "",
        "units": "the units of each hidden layer",
        "dropout": "the rate after each hidden layer",
    },
    "Cnn": {
        "name": "",
        "filters": "the filters of each block",
        "units": "the units of the dense layer",
        "dropout": "the rate before the last layer",
    },
    "Transformer": {
        "name": "",
        "d_model": "the width, a multiple of `heads`",
        "layers": "the number of blocks of attention and feed-forward",
        "heads": "the number of attention heads",
        "feed_forward": "the width within a block",
        "dropout": "the rate in each block",
    },
    "Embedding": {
        "name": "",
        "dimension": "the length of a word's vector",
        "units": "the units of each hidden layer",
        "dropout": "the rate after each hidden layer",
    },
    "Application": {"name": "`ResNet50`, `MobileNetV2` ..."},
    "FineTuning": {
        "start_from": (
            "trained weights: the folder of a run, or a file that ends in `.keras` or `.weights.h5`"
        ),
        "new_layers": "layers that start from random weights in any case, such as the head",
        "unfreeze": "layers that are frozen at first, each with the number of epochs: `dense: 2`",
    },
    "Optimizer": {
        "name": "a name in `tf-graft list`, or of an optimizer of Keras",
        "learning_rate": "a number, or a schedule: its name and arguments",
    },
    "Precision": {"policy": "Keras' dtype policy of the layers"},
    "Mirrored": {
        "name": "",
        "devices": "the number of GPUs, else of parts of the CPU; or all GPUs",
    },
    "MultiWorker": {"name": ""},
    "ParameterServer": {
        "name": "",
        "shards": "the number of parts of each variable",
    },
    "Mesh": {
        "batch": "the number of devices that divide the batches",
        "model": "the number of devices that divide the weights",
        "shard_slots": (
            "whether the devices of `batch` divide the optimizer's slots (ZeRO, stage 1)"
        ),
        "layouts": (
            "regular expressions on variables' paths, with a dimension or `null` for each axis"
        ),
    },
    "OpenSeq2Seq": {
        "optimizer": "OpenSeq2Seq's name",
        "optimizer_params": "the optimizer's arguments",
        "lr_policy": "a policy of OpenSeq2Seq",
        "lr_policy_params": (
            "the policy's arguments; without `decay_steps` the decay lasts to the end"
        ),
        "larc_params": "LARC's arguments: `larc_eta`, `larc_mode` ...",
        "loss_scaling": "a number, `Backoff` or `LogMax`",
        "loss_scaling_params": "the arguments of `Backoff` or `LogMax`",
        "iter_size": "the number of micro-steps in an update",
        "max_grad_norm": "the largest norm of all gradients together",
        "dtype": "`mixed` is float16 with a loss scale",
    },
    "Run": {
        "epochs": "the number of passes over the training data",
        "seed": "the seed of weights, shuffling and dropout",
        "dir": "the folder of the run; else `runs/` and the config's name",
        "fresh": "whether to remove an existing run first; acts once",
        "checkpoint_every": "the number of steps between saved states",
        "keep_checkpoints": "the number of saved states to keep, the newest ones",
        "steps_per_execution": "the number of steps that one call of TensorFlow takes",
        "jit_compile": "whether XLA compiles the step",
        "deterministic": "whether GPUs must repeat every bit",
        "monitor": (
            "the number of batches between measurements of norms by layer, for `tf-graft report`"
        ),
        "tensorboard": "whether to write TensorBoard files; `null`: if TensorBoard is installed",
        "progress": "how progress is shown",
    },
}
