"""Keras, "Actor Critic Method": episodes of a game, a gradient of the whole episode, eagerly."""

import keras
import numpy as np
import tensorflow as tf

from tutorials import tolerances

TOLERANCE = tolerances.RETURNS
STEPS = 12


def episode(model, random):
    """A walk on a line, rewarded for where it leads: log probabilities, values, rewards."""
    position, found = 0.0, []
    for _ in range(STEPS):
        state = tf.constant([[position, position**2]])
        action_probs, critic_value = model(state)
        action = random.choice(2, p=np.squeeze(action_probs) / np.sum(action_probs))
        position += 0.3 * (2 * action - 1)
        found.append((tf.math.log(action_probs[0, action]), critic_value[0, 0], position))
    return zip(*found, strict=True)


def normalized_returns(rewards, gamma=0.9):
    returns, discounted_sum = [], 0.0
    for reward in rewards[::-1]:
        discounted_sum = reward + gamma * discounted_sum
        returns.insert(0, discounted_sum)
    returns = np.array(returns)
    return ((returns - returns.mean()) / (returns.std() + 1e-7)).astype("float32")


def run(optimizers):
    random = np.random.default_rng(0)
    inputs = keras.Input((2,))
    common = keras.layers.Dense(32, activation="relu")(inputs)
    outputs = [keras.layers.Dense(2, activation="softmax")(common), keras.layers.Dense(1)(common)]
    model = keras.Model(inputs, outputs)
    optimizer = optimizers.Adam(learning_rate=0.01)
    huber_loss = keras.losses.Huber()
    losses = []
    for _ in range(8):
        with tf.GradientTape() as tape:
            log_probs, values, rewards = episode(model, random)
            loss_value = 0.0
            for log_prob, value, ret in zip(
                log_probs, values, normalized_returns(rewards), strict=True
            ):
                loss_value += -log_prob * tf.stop_gradient(ret - value)
                loss_value += huber_loss([value], [ret])
        grads = tape.gradient(loss_value, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
        losses.append(float(loss_value))
    return losses
