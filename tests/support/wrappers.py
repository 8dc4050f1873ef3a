"""Every wrapper of the package around a given optimizer, with a number as its own rate."""

import tf_graft as tg
from tf_graft.compose.wrapper import Wrapper


def _classes(cls):
    """The classes of the package that users make objects of, which inherit from a class."""
    for each in cls.__subclasses__():
        if each.__module__.startswith("tf_graft.") and getattr(tg, each.__name__, None) is each:
            yield each
        yield from _classes(each)


# The variables of `saving.net`, for which there are factors.
LAYERS = {"table": ["embeddings"], "hidden": ["kernel", "bias"], "head": ["kernel", "bias"]}
PATHS = [
    f"{scope}{layer}/{name}"  # Keras drops the model's name when it loads a model
    for scope in ("net/", "")
    for layer, names in LAYERS.items()
    for name in names
]
MATRICES = {"KLSOAP", "KLShampoo", "Muon", "NorMuon", "SOAP", "SOAPMuon", "Shampoo"}

# A function of the optimizer to be wrapped, and of common arguments. The other optimizers in a
# wrapper are plain ones.
WRAPPERS = {
    "AGN": lambda x, **o: tg.AGN(x, communication_period=2, center_optimizer=tg.SGD(0.5), **o),
    "AdaGraft": lambda x, **o: tg.AdaGraft(tg.SGD(0.3), x, **o),
    "AdaptiveGradientClipping": tg.AdaptiveGradientClipping,
    "Cautious": tg.Cautious,
    "GradientCentralization": tg.GradientCentralization,
    "Hyperball": tg.Hyperball,
    "RadialBrake": tg.RadialBrake,
    "EMANesterov": tg.EMANesterov,
    "LARC": tg.LARC,
    "LayerwiseRates": lambda x, **o: tg.LayerwiseRates(x, dict.fromkeys(PATHS, 0.5), 0.7, **o),
    "MixedPrecision": lambda x, **o: tg.MixedPrecision(x, "backoff", **o),
    "MultiOptimizer": lambda x, **o: tg.MultiOptimizer(
        {"hidden" if type(x) is tg.MultiOptimizer else "kernel": x, ".*": tg.Adam(0.4)}, 0.8, **o
    ),
    "KLSOAP": lambda x, **o: tg.KLSOAP(0.3, others=x, **o),
    "KLShampoo": lambda x, **o: tg.KLShampoo(0.3, others=x, **o),
    "Muon": lambda x, **o: tg.Muon(0.3, others=x, **o),
    "NorMuon": lambda x, **o: tg.NorMuon(0.3, others=x, **o),
    "SOAP": lambda x, **o: tg.SOAP(0.3, others=x, **o),
    "SOAPMuon": lambda x, **o: tg.SOAPMuon(0.3, others=x, **o),
    "Shampoo": lambda x, **o: tg.Shampoo(0.3, others=x, **o),
}
assert WRAPPERS.keys() == {cls.__name__ for cls in _classes(Wrapper)}
OUTERMOST = {"AGN", "EMANesterov", "MixedPrecision"}


def inside(outer):
    """The wrappers that another one may contain."""
    matrices = MATRICES if outer in MATRICES else ()  # which leave no matrix for `others`
    outermost = OUTERMOST - ({"MixedPrecision"} if outer == "AGN" else set())
    return [name for name in WRAPPERS if name not in {*matrices, *outermost}]
