"""Installer's Jobs and the labels that tell of them: one write a pass, the next when it was seen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from cluster.api.names import INSTALLER, OPERATOR_MANAGER
from cluster.installer.job import install_job, termination_sentence
from cluster.kube.errors import ApiError
from cluster.kube.requests import Resource
from cluster.operator.installs import CREATE, DELETE, Act, Job, next_install, read_job
from cluster.operator.io.cache import Cache
from cluster.operator.objects import KubernetesNode, NodePlacement
from cluster.operator.writes import node_labels

JOBS = Resource("batch", "v1", "jobs", namespaced=True)
PODS = Resource("", "v1", "pods", namespaced=True)
NODES = Resource("", "v1", "nodes")
SELECTOR = f"app.kubernetes.io/name={INSTALLER},app.kubernetes.io/component=install"


class Installs:
    """Installation of one image on the nodes that ask for it."""

    def __init__(
        self,
        client: Any,
        image: str,
        namespace: str,
        pull_secrets: tuple[str, ...],
        changed: asyncio.Event,
        log: Callable[[str], None],
    ) -> None:
        self._client, self._image, self._namespace = client, image, namespace
        self._pull_secrets, self._log = pull_secrets, log
        self.jobs: Cache[Job] = Cache(read_job, changed)
        self._said = ""

    async def follow(self) -> None:
        """Watch the Jobs, for ever."""
        watch = self._client.watch(
            JOBS, namespace=self._namespace, label_selector=SELECTOR, keep=self.jobs.keep, limit=500
        )
        await self.jobs.follow(watch)

    async def next(self, nodes: Cache[KubernetesNode], placements: Mapping[str, NodePlacement]) -> None:
        """Make the next write, if there is one."""
        jobs = {job.node: job for job in self.jobs.values.values()}
        found = next_install(self._image, nodes.values.values(), placements, jobs)
        if found.waits and found.waits != self._said:
            self._log(f"installations wait: {found.waits}")
        self._said = found.waits
        if found.act is None:
            return
        if found.act.kind == CREATE:
            await self._create(found.act.node.name)
        elif found.act.kind == DELETE:
            await self._delete(found.act)
        else:
            await self._label(found.act, nodes)

    async def _create(self, node: str) -> None:
        job = install_job(node, self._image, namespace=self._namespace, pull_secrets=self._pull_secrets)
        try:
            self.jobs.put(await self._client.create(JOBS, job, self._namespace))
            self._log(f"node {node}: {self._image} is being installed")
        except ApiError as error:
            # It is there, and the watch has not told yet.
            if error.status != 409:
                raise

    async def _delete(self, act: Act) -> None:
        assert act.job is not None
        try:
            await self._client.delete(
                JOBS, act.job.name, self._namespace, uid=act.job.uid, propagation="Background"
            )
        except ApiError as error:
            if error.status not in (404, 409):
                raise
        self.jobs.drop(act.job.name)

    async def _label(self, act: Act, nodes: Cache[KubernetesNode]) -> None:
        failed = ""
        if act.job is not None:
            sentence = await self._sentence(act.job)
            failed = f"{act.job.image}: {sentence}"
            self._log(f"node {act.node.name}: the installation has failed: {sentence}")
        elif act.node.installing and not act.installing:
            self._log(f"node {act.node.name}: {act.installed} is installed")
        document = node_labels(act.node, act.installed, act.installing, failed)
        nodes.put(await self._client.apply(NODES, act.node.name, document, manager=OPERATOR_MANAGER))

    async def _sentence(self, job: Job) -> str:
        pods = await self._client.list(PODS, self._namespace, label_selector=f"job-name={job.name}")
        sentences = [termination_sentence(pod) for pod in pods.get("items") or ()]
        return next((each for each in sentences if each), "the pod has left no word of why")
