"""Steps on one rank without a loop: their plan, their samples, their micro-batches."""

from stages.engines.policies.packing import groups_by_rank
from stages.rl_round.samples import plan_step, prepare_samples, training_samples
from stages.rl_round.update import make_micro_batches


def plan_of(samples, params, trainer, version=0):
    return plan_step([one.tokens for one in samples.sequences], version, params.minibatches, 512, trainer, 0)


def prepare(groups, params, trainer, reference=None, version=0):
    """Returns the step's samples and its plan."""
    plan = plan_of(training_samples(groups, params, version), params, trainer, version)
    return prepare_samples(groups, plan, params, trainer, reference), plan


def micro_batches(samples, params, trainer, tokens=512):
    """Returns the micro-batches of all samples as one minibatch."""
    return make_micro_batches(samples, places_of(samples, trainer, tokens), params)


def places_of(samples, trainer, tokens=512):
    return groups_by_rank([one.tokens for one in samples.sequences], tokens, trainer)[trainer.rank]
