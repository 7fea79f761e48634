# Retrace with the packages of one recipe, for CPUs or for CUDA:
#
#     docker build -t retrace .                                   torch's CPU build
#     docker build -t retrace --build-arg TORCH= .                torch's CUDA build, from PyPI
#     docker build -t retrace --build-arg RECIPE=gsm8k-smollm2 .  the packages of that recipe too
#     docker run -it -v retrace-data:/home/retrace/retrace/data -v retrace-state:/home/retrace/retrace/state retrace
#
# The second volume holds checkpoints and the databases of MLflow and Prefect. With `--gpus all` the first start installs
# what only a machine with a GPU needs, so it needs the network. `make ui` listens on loopback: add `--network host`.
FROM python:3.12-slim-bookworm

# The versions of git and make change no result.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --no-install-recommends --yes git make \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 retrace

# By number: a cluster that forbids root can check it.
USER 1000
WORKDIR /home/retrace/retrace
# With .git: the code of each run is a commit.
COPY --chown=retrace:retrace . .

ARG TORCH=cpu
ARG RECIPE=laptop
# Volumes take their owner from folders that the image has.
RUN mkdir -p data state && RETRACE_TORCH="$TORCH" python pipelines/set_up.py repro "$RECIPE"

# Last: make needs the system's Python, which makes the environment.
ENV PATH="$PATH:/home/retrace/retrace/.venv/bin"
CMD ["make", "repro"]
