"""By how much losses may differ, relatively, from what stock Keras computes where it is right."""

ROUNDING = 2e-6  # float32, and sums in another order
ADAM = 2e-5  # stock Adam's first steps are 7e-6 too short, which float64 shows
RETURNS = 1e-4  # likewise; returns that nearly cancel are divided by their standard deviation
HALF = 1e-4  # an activation in half precision may round another way
