"""Test support: kubelet's file of prepared claims (``dra_manager_state``)."""

from __future__ import annotations

import json
import zlib

from cluster.dra.claims import ClaimName


def kubelet_state(*claims: tuple[ClaimName, str]) -> str:
    """As kubelet writes it; "" instead of a driver: the claim is known, and no device is prepared."""
    rows = []
    for claim, driver in claims:
        device = {"PoolName": "node-1", "DeviceName": "l3-0", "ShareID": None, "RequestNames": ["cpus"]}
        rows.append(
            {
                "ClaimUID": claim.uid,
                "ClaimName": claim.name,
                "Namespace": claim.namespace,
                "PodUIDs": {"p": {}},
                "DriverState": {driver: {"Devices": [{**device, "CDIDeviceIDs": ["x"]}]}} if driver else {},
            }
        )
    words = {"kind": "DRACheckpoint", "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1"}
    data = json.dumps({**words, "ClaimInfoStateList": rows or None})
    return json.dumps({"Data": data, "Checksum": zlib.crc32(data.encode())})
