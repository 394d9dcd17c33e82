"""Tasks on which soft prompts are really tuned: a frozen network small enough for numpy.

The network computes ``softmax(V tanh(W x + U p + b))`` of an input x and a soft prompt p; only p
is ever tuned, by gradient descent on the cross-entropy over a task's rows. A task is a prompt
that its labels were drawn with. Tasks come in families of uneven size whose prompts are near
each other, as public prompts do; the bank holds prompts tuned on other tasks.

Everything here is computed: scores are losses, iterations to accuracy are counted. What is
invented is the network, the families and their spread (:class:`TaskRules`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TaskRules:
    """Sizes of the network and of the world of tasks."""

    inputs: int = 8
    prompt: int = 12
    hidden: int = 32
    classes: int = 6
    #: Tokens of a row; a loss is their mean, as a language model's is.
    tokens: int = 12
    families: int = 40
    #: Spread of a family's centre and of its tasks around it.
    centre_spread: float = 1.5
    task_spread: float = 0.8
    #: Exponent of the sizes of families: the largest has many times the smallest's tasks.
    unevenness: float = 1.0
    train_rows: int = 16
    learning_rate: float = 0.5
    #: Iterations that tune a candidate of the bank, that define a task's target, and at most.
    bank_iterations: int = 80
    target_iterations: int = 60
    most_iterations: int = 200


@dataclass(frozen=True, slots=True)
class Network:
    """The frozen base model."""

    W: Floats
    U: Floats
    b: Floats
    V: Floats

    def activations(self, prompts: Floats, inputs: Floats) -> Floats:
        """Hidden layer of every prompt on every input, (P, n, hidden)."""
        return np.tanh((inputs @ self.W.T + self.b)[None, :, :] + (prompts @ self.U.T)[:, None, :])

    def losses(self, prompts: Floats, inputs: Floats, labels: Ints) -> Floats:
        """Cross-entropy of every prompt on every token, (P, n)."""
        return _cross_entropy(self.activations(prompts, inputs) @ self.V.T, labels)[0]

    def features(self, prompts: Floats, probes: Floats) -> Floats:
        """Activation features of prompts: the mean hidden layer over probes, (P, hidden)."""
        return self.activations(prompts, probes).mean(axis=1)

    def tune(
        self,
        prompts: Floats,
        inputs: Floats,
        labels: Ints,
        *,
        iterations: int,
        rate: float,
        target: float = -np.inf,
    ) -> tuple[Floats, Floats]:
        """Tune many prompts at once, until all have been at or below a target loss.

        Returns
        -------
        prompts : (P, D) array
            After the last iteration.
        losses : (iterations + 1, P) array
            Mean loss before each iteration and after the last.
        """
        prompts = prompts.copy()
        least = np.full(len(prompts), np.inf)
        curve = np.full((iterations + 1, len(prompts)), -np.inf)
        for step in range(iterations + 1):
            hidden = self.activations(prompts, inputs)
            loss, gradient = _cross_entropy(hidden @ self.V.T, labels)
            curve[step] = loss.mean(axis=1)
            least = np.minimum(least, curve[step])
            if (least <= target).all():
                break
            if step < iterations:
                back = (gradient @ self.V) * (1.0 - hidden**2)
                prompts -= rate * back.mean(axis=1) @ self.U
        return prompts, curve


def _cross_entropy(logits: Floats, labels: Ints) -> tuple[Floats, Floats]:
    """Loss by row, and its gradient by logit."""
    logits = logits - logits.max(axis=2, keepdims=True)
    shares = np.exp(logits)
    shares /= shares.sum(axis=2, keepdims=True)
    rows = np.arange(len(labels))
    loss = -np.log(shares[:, rows, labels] + 1e-30)
    shares[:, rows, labels] -= 1.0
    return loss, shares


@dataclass(frozen=True, slots=True)
class TuningTask:
    """Tokens of one job: to train on, and to score candidates on, row after row."""

    inputs: Floats
    labels: Ints
    score_inputs: Floats
    score_labels: Ints


class TaskWorld:
    """Draws tasks and makes banks, by seed."""

    def __init__(self, seed: int, rules: TaskRules | None = None) -> None:
        self.rules = rules = rules or TaskRules()
        self._rng = rng = np.random.default_rng([seed, 11])
        self.network = Network(
            W=rng.standard_normal((rules.hidden, rules.inputs)) / rules.inputs**0.5,
            U=rng.standard_normal((rules.hidden, rules.prompt)) / rules.prompt**0.5,
            b=0.1 * rng.standard_normal(rules.hidden),
            V=3.0 * rng.standard_normal((rules.classes, rules.hidden)) / rules.hidden**0.5,
        )
        self._centres = rules.centre_spread * rng.standard_normal((rules.families, rules.prompt))
        shares = np.arange(1, rules.families + 1) ** -rules.unevenness
        self._shares = shares / shares.sum()
        self.probes = rng.standard_normal((16, rules.inputs))

    def draw_task(self, score_rows: int) -> TuningTask:
        """Draw a task of a family drawn by size."""
        rules, rng = self.rules, self._rng
        family = rng.choice(rules.families, p=self._shares)
        hidden = self._centres[family] + rules.task_spread * rng.standard_normal(rules.prompt)
        count = rules.tokens * (rules.train_rows + score_rows)
        inputs = rng.standard_normal((count, rules.inputs))
        logits = (self.network.activations(hidden[None, :], inputs) @ self.network.V.T)[0]
        # The generator's own type is known in part only.
        noise = cast(Floats, rng.gumbel(size=logits.shape))
        labels = np.argmax(logits + noise, axis=1)
        cut = rules.tokens * rules.train_rows
        return TuningTask(inputs[:cut], labels[:cut], inputs[cut:], labels[cut:])

    def make_candidates(self, count: int) -> Floats:
        """Tune one prompt on each of ``count`` other tasks, from a random start."""
        rules = self.rules
        made: list[Floats] = []
        for _ in range(count):
            task = self.draw_task(0)
            start = 0.1 * self._rng.standard_normal((1, rules.prompt))
            tuned, _ = self.network.tune(
                start,
                task.inputs,
                task.labels,
                iterations=rules.bank_iterations,
                rate=rules.learning_rate,
            )
            made.append(tuned[0])
        return np.array(made)

    def score(self, task: TuningTask, prompts: Floats, rows: range) -> Floats:
        """Mean loss of every prompt on the rows of a task, (P, rows)."""
        tokens = self.rules.tokens
        part = slice(tokens * rows.start, tokens * rows.stop)
        losses = self.network.losses(prompts, task.score_inputs[part], task.score_labels[part])
        return losses.reshape(len(prompts), len(rows), tokens).mean(axis=2)

    def choose(self, count: int, of: int) -> Ints:
        """Draw different candidates."""
        return self._rng.choice(of, size=count, replace=False)

    def iterations_to(self, task: TuningTask, starts: Floats, target: float) -> Ints:
        """Iterations to a mean training loss of ``target``, at least 1, of each start."""
        rules = self.rules
        _, curve = self.network.tune(
            starts,
            task.inputs,
            task.labels,
            iterations=rules.most_iterations,
            rate=rules.learning_rate,
            target=target,
        )
        reached = curve <= target
        first = np.where(reached.any(axis=0), np.argmax(reached, axis=0), rules.most_iterations)
        return np.maximum(1, first)

    def target_of(self, task: TuningTask, starts: Floats) -> float:
        """The paper's target: the mean over random starts, after a fixed number of iterations."""
        rules = self.rules
        _, curve = self.network.tune(
            starts,
            task.inputs,
            task.labels,
            iterations=rules.target_iterations,
            rate=rules.learning_rate,
        )
        return float(curve[-1].mean())
