"""Kubelet's plugin for dynamic resource allocation: its registration, and the calls that prepare claims.

Kubelet watches plugins_registry for sockets, asks each for its name and where its service is, and calls that one. The two
have sockets of their own, so that kubelet learns of the plugin when the service is there already, and no sooner.

What calls are made: k8s.io/kubelet/pkg/apis/dra, dra-health and pluginregistration, by pkg/kubelet/cm/dra in Kubernetes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Callable, Optional

from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError

from cluster.agent.io.daemon import DaemonAway, DaemonClient, FolderGone
from cluster.agent.io.log import TroubleLog, log
from cluster.api.reader import Unreadable
from cluster.dra.claims import ClaimName
from cluster.dra.health import DeviceState, device_states
from cluster.dra.io.preparing import Prepared, Preparing
from cluster.dra.io.sockets import ServedSocket
from cluster.kube.io.client import Client
from cluster.kube.io.clock import Clock
from cri_api import dra_health_pb2 as health_api
from cri_api import dra_v1_pb2 as api
from cri_api import plugin_registration_pb2 as registration_api
from cri_api.control import ControlError
from cri_api.socket_paths import SocketTaken, is_served

#: What kubelet registers a plugin of this kind as.
TYPE = "DRAPlugin"
#: The services that are served; kubelet takes the first that it knows. The messages of all versions are the same.
VERSIONS = ("v1.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
_PACKAGE = "k8s.io.kubelet.pkg.apis.dra"
_REGISTRATION = "/pluginregistration.Registration"
#: Between two looks at whether the sockets' files are still there, seconds.
LOOK_S = 5.0
#: Between two looks at the health of devices while kubelet wants to hear of it, seconds.
HEALTH_S = 5.0
#: What has not changed is told again so rarely: kubelet writes a file each time.
REPEAT_S = 100.0
#: Without a word for so long kubelet knows nothing of a device.
HEALTH_TIMEOUT_S = 300


class Plugin:
    """One node's. ``run`` serves until it is cancelled, and leaves no socket."""

    def __init__(
        self,
        daemon: DaemonClient,
        client: Client,
        node: str,
        driver: str,
        kubelet_dir: Path,
        clock: Optional[Clock] = None,
    ) -> None:
        self._daemon, self._node, self._driver = daemon, node, driver
        self._clock = clock or Clock()
        self.preparing = Preparing(daemon, client, node, driver)
        self._kubelet = TroubleLog("kubelet has not registered the plugin", "it has now")
        service, registration = socket_paths(kubelet_dir, driver)
        #: Whether both sockets are there: until then another process may be the driver.
        self.is_served = False
        #: In the order in which they are to be there.
        self._sockets = (
            ServedSocket(service, _Service(self._driver_calls())),
            ServedSocket(registration, _Service(self._registration_calls())),
        )

    async def run(self) -> None:
        """Serve; a socket's file that is removed meanwhile is made again, and kubelet registers the plugin anew.

        :raises SocketTaken: a socket cannot be served, or another process serves the plugin, or one of the same name.
        """
        try:
            self._check_no_other()
            for each in self._sockets:
                await each.start()
            self.is_served = True
            log("info", "plugin", driver=self._driver, socket=self._sockets[-1].path)
            while True:
                await self._clock.sleep(LOOK_S)
                await self._look()
        finally:
            self.is_served = False
            for each in reversed(self._sockets):
                each.close()
            await self.preparing.close()

    def _check_no_other(self) -> None:
        """Kubelet takes the last of several plugins with one name, and the claims of the others are lost to it."""
        ours = self._sockets[-1].path
        # As k8s.io/dynamic-resource-allocation/kubeletplugin names them: with the UID of the driver's pod in between.
        for path in sorted(ours.parent.glob(f"{self._driver}-*reg.sock")):
            if path != ours and is_served(path):
                raise SocketTaken(
                    f"{path} registers a driver called {self._driver} already; remove that driver first"
                )

    async def _look(self) -> None:
        for each in self._sockets:
            if not each.is_there():
                log("warning", "plugin", reason=f"{each.path} was removed; it is made again")
                each.close()
                await each.start()

    # ------------------------------------------------------------------ registration

    def _registration_calls(self) -> dict[str, Handler]:
        return {
            f"{_REGISTRATION}/GetInfo": Handler(
                self._get_info,
                Cardinality.UNARY_UNARY,
                registration_api.InfoRequest,
                registration_api.PluginInfo,
            ),
            f"{_REGISTRATION}/NotifyRegistrationStatus": Handler(
                self._registered,
                Cardinality.UNARY_UNARY,
                registration_api.RegistrationStatus,
                registration_api.RegistrationStatusResponse,
            ),
        }

    async def _get_info(self, stream: Any) -> None:
        await stream.recv_message()
        info = registration_api.PluginInfo(
            type=TYPE, name=self._driver, endpoint=str(self._sockets[0].path), supported_versions=VERSIONS
        )
        await stream.send_message(info)

    async def _registered(self, stream: Any) -> None:
        status = await stream.recv_message()
        if status.plugin_registered:
            self._kubelet.well()
            log("info", "registered with kubelet", driver=self._driver)
        else:  # kubelet tries again by itself
            self._kubelet.trouble(status.error or "kubelet gives no reason")
        await stream.send_message(registration_api.RegistrationStatusResponse())

    # ------------------------------------------------------------------ claims

    def _driver_calls(self) -> dict[str, Handler]:
        calls: dict[str, Handler] = {}
        for version in ("v1", "v1beta1"):
            calls[f"/{_PACKAGE}.{version}.DRAPlugin/NodePrepareResources"] = Handler(
                self._prepare,
                Cardinality.UNARY_UNARY,
                api.NodePrepareResourcesRequest,
                api.NodePrepareResourcesResponse,
            )
            calls[f"/{_PACKAGE}.{version}.DRAPlugin/NodeUnprepareResources"] = Handler(
                self._unprepare,
                Cardinality.UNARY_UNARY,
                api.NodeUnprepareResourcesRequest,
                api.NodeUnprepareResourcesResponse,
            )
        for version in ("v1", "v1alpha1"):
            calls[f"/{version}.DRAResourceHealth/NodeWatchResources"] = Handler(
                self._watch,
                Cardinality.UNARY_STREAM,
                health_api.NodeWatchResourcesRequest,
                health_api.NodeWatchResourcesResponse,
            )
        return calls

    async def _prepare(self, stream: Any) -> None:
        found = await _each(await stream.recv_message(), self.preparing.prepare)
        answer = api.NodePrepareResourcesResponse()
        for uid, prepared in found.items():
            one = answer.claims[uid]
            one.error = prepared.error
            for device in prepared.devices:
                told = one.devices.add(
                    request_names=[device.request],
                    pool_name=device.pool,
                    device_name=device.device,
                    cdi_device_ids=device.cdi,
                )
                if device.share:
                    told.share_id = device.share
        await stream.send_message(answer)

    async def _unprepare(self, stream: Any) -> None:
        found = await _each(await stream.recv_message(), self.preparing.unprepare)
        answer = api.NodeUnprepareResourcesResponse()
        for uid, prepared in found.items():
            answer.claims[uid].error = prepared.error
        await stream.send_message(answer)

    # ------------------------------------------------------------------ health

    async def _watch(self, stream: Any) -> None:
        await stream.recv_message()
        told: Optional[tuple[DeviceState, ...]] = None
        next_s = 0.0
        while True:
            states = await self._states()
            now_s = self._clock.monotonic()
            # With the daemon away nothing is known: nothing is told, and kubelet says so itself after a while.
            if states is not None and (states != told or now_s >= next_s):
                await stream.send_message(self._write_health(states))
                told, next_s = states, now_s + REPEAT_S
            await self._clock.sleep(HEALTH_S)

    async def _states(self) -> Optional[tuple[DeviceState, ...]]:
        try:
            return device_states(await self._daemon.ask("claim-devices"), await self._daemon.ask("claims"))
        except (DaemonAway, FolderGone, ControlError, Unreadable):
            return None

    def _write_health(self, states: Iterable[DeviceState]) -> Any:
        now = int(self._clock.wall())
        found = health_api.NodeWatchResourcesResponse()
        for state in states:
            one = found.devices.add(
                health=health_api.HEALTHY if state.is_healthy else health_api.UNHEALTHY,
                last_updated_time=now,
                health_check_timeout_seconds=HEALTH_TIMEOUT_S,
                message=state.message,
            )
            one.device.pool_name, one.device.device_name = self._node, state.device
        return found


class _Service:
    """Calls as a service of grpclib."""

    def __init__(self, calls: dict[str, Handler]) -> None:
        self._calls = calls

    def __mapping__(self) -> dict[str, Handler]:
        return self._calls


def socket_paths(kubelet_dir: Path, driver: str) -> tuple[Path, Path]:
    """Of the service, and of its registration."""
    return (
        kubelet_dir / "plugins" / driver / "dra.sock",
        kubelet_dir / "plugins_registry" / f"{driver}-reg.sock",
    )


async def _each(request: Any, do: Callable[[ClaimName], Any]) -> dict[str, Prepared]:
    """The claims of a request, all at once; by UID."""
    claims = list(dict.fromkeys(ClaimName(each.namespace, each.name, each.uid) for each in request.claims))
    if len({claim.uid for claim in claims}) < len(claims) or not all(all(claim) for claim in claims):
        raise GRPCError(
            Status.INVALID_ARGUMENT, "each claim has a namespace, a name and a UID, which no other claim has"
        )
    found = await asyncio.gather(*(do(claim) for claim in claims))
    return {claim.uid: prepared for claim, prepared in zip(claims, found)}
