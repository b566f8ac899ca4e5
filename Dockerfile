# The controller's image: what is pinned in constraints.txt, checked by hash, and nothing that only developers need.
#   docker build -t fairlease .

FROM python:3.12-slim AS build
WORKDIR /src
COPY constraints.txt pyproject.toml README.md LICENSE ./
RUN python -m pip download --quiet --only-binary=:all: --require-hashes --requirement constraints.txt --dest /wheels
COPY src src
RUN python -m pip install --quiet --no-index --find-links /wheels hatchling \
 && python -m pip wheel --quiet --no-index --no-deps --no-build-isolation --wheel-dir /wheels . \
 && python -m venv /opt/fairlease \
 && /opt/fairlease/bin/python -m pip install --quiet --no-index --find-links /wheels --compile fairlease

FROM python:3.12-slim
COPY --from=build /opt/fairlease /opt/fairlease
USER 65532:65532
ENV PATH=/opt/fairlease/bin:$PATH PYTHONUNBUFFERED=1
EXPOSE 8080
ENTRYPOINT ["fairlease"]
CMD ["controller"]
