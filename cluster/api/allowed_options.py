"""The options that a policy of the cluster may set, by key, with the schema of each.

Written by `make docs` from the daemon's table of options; a test compares.
"""
# ruff: noqa: E501

from __future__ import annotations

from typing import Any

# fmt: off
OPTIONS: dict[str, dict[str, Any]] = {
 "policy.Active": {
  "type": "string",
  "enum": [
   "hygon",
   "topology-aware",
   "balloons",
   "none"
  ],
  "description": "The placement policy. hygon: the ladder of the Hygon manual, CPUs shared; topology-aware: CPUs of their own for Guaranteed containers; balloons: pools of CPUs by policy.balloons.BalloonTypes; none: nothing is placed. Default: hygon.",
  "expected": "hygon, topology-aware, balloons or none"
 },
 "policy.ReservedResources.CPU": {
  "anyOf": [
   {
    "type": "integer"
   },
   {
    "type": "string"
   }
  ],
  "x-kubernetes-int-or-string": True,
  "pattern": "^([0-9]{1,9}(\\.[0-9]{1,9})?m?|((exclude-)?cpuset:)?[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*)?$",
  "minimum": 0,
  "maximum": 65536,
  "maxLength": 2048,
  "description": "CPUs kept for the system and for placement.reserved_namespaces. A quantity is rounded up to whole cores and taken from one L3. Unit: CPUs. Default: \"\".",
  "expected": "a quantity such as 750m or 4, a set such as cpuset:0-3 or 0-3,8, all others with exclude-cpuset:0-3, a cgroup such as cgroup:/system, or \"\" for none"
 },
 "policy.AvailableResources.CPU": {
  "anyOf": [
   {
    "type": "integer"
   },
   {
    "type": "string"
   }
  ],
  "x-kubernetes-int-or-string": True,
  "pattern": "^([0-9]{1,9}(\\.[0-9]{1,9})?m?|((exclude-)?cpuset:)?[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*)?$",
  "minimum": 0,
  "maximum": 65536,
  "maxLength": 2048,
  "description": "The only CPUs that containers may be placed on, besides reserved ones. A quantity takes as many, L3 by L3. Unit: CPUs. Default: \"\".",
  "expected": "a quantity such as 750m or 4, a set such as cpuset:0-3 or 0-3,8, all others with exclude-cpuset:0-3, a cgroup such as cgroup:/system, or \"\" for all that are online"
 },
 "policy.balloons.BalloonTypes": {
  "type": "array",
  "items": {
   "type": "object",
   "required": [
    "Name"
   ],
   "properties": {
    "Name": {
     "type": "string",
     "minLength": 1,
     "maxLength": 63,
     "pattern": "^[^ \\[\\]]+$",
     "description": "Its name; reserved and default change the two that are built in.",
     "expected": "a name without spaces and brackets"
    },
    "Namespaces": {
     "type": "array",
     "items": {
      "type": "string",
      "minLength": 1,
      "maxLength": 253,
      "pattern": "^[!-~]+$"
     },
     "maxItems": 256,
     "x-kubernetes-list-type": "atomic",
     "description": "Namespaces (globs) whose containers are of this type.",
     "expected": "a list of names or globs, such as [kube-system, \"ops-*\"]"
    },
    "MatchExpressions": {
     "type": "array",
     "items": {
      "type": "object",
      "description": "One condition on a container.",
      "required": [
       "operator"
      ],
      "properties": {
       "key": {
        "type": "string",
        "minLength": 1,
        "maxLength": 253,
        "description": "What is looked at, such as name, namespace, qosclass or labels/app.",
        "expected": "a text"
       },
       "operator": {
        "type": "string",
        "enum": [
         "Equals",
         "NotEqual",
         "Matches",
         "MatchesNot",
         "In",
         "NotIn",
         "MatchesAny",
         "MatchesNone",
         "Exists",
         "NotExists",
         "NotExist",
         "AlwaysTrue"
        ],
        "description": "How it is compared with the values.",
        "expected": "an operator such as In or Exists"
       },
       "values": {
        "type": "array",
        "items": {
         "type": "string",
         "maxLength": 253
        },
        "maxItems": 32,
        "x-kubernetes-list-type": "atomic",
        "description": "What it is compared with.",
        "expected": "a list of texts"
       }
      }
     },
     "maxItems": 32,
     "x-kubernetes-list-type": "atomic",
     "description": "Containers for which one of these holds are, too.",
     "expected": "a list of {key: ..., operator: ..., values: [...]}"
    },
    "GroupBy": {
     "type": "string",
     "minLength": 1,
     "maxLength": 253,
     "description": "Containers for which this text, such as \"${pod/labels/app}\", comes out the same share a balloon.",
     "expected": "a text"
    },
    "MinCPUs": {
     "type": "integer",
     "minimum": 0,
     "maximum": 65536,
     "description": "A balloon never has fewer CPUs.",
     "expected": "a whole number from 0 to 65536"
    },
    "MaxCPUs": {
     "type": "integer",
     "minimum": -1,
     "maximum": 65536,
     "description": "Nor more; 0: no limit; -1: containers of this type are refused.",
     "expected": "a whole number from -1 to 65536"
    },
    "MinBalloons": {
     "type": "integer",
     "minimum": 0,
     "maximum": 65536,
     "description": "As many are made at once, and stay.",
     "expected": "a whole number from 0 to 65536"
    },
    "MaxBalloons": {
     "type": "integer",
     "minimum": 0,
     "maximum": 65536,
     "description": "No more are made; 0: no limit.",
     "expected": "a whole number from 0 to 65536"
    },
    "AllocatorPriority": {
     "type": "string",
     "enum": [
      "high",
      "normal",
      "low",
      "none"
     ],
     "description": "The order in which the balloons of MinBalloons are made.",
     "expected": "high, normal, low or none, or 0 (high) to 3"
    },
    "PreferNewBalloons": {
     "type": "boolean",
     "description": "A balloon of its own for each container, while there are CPUs for that.",
     "expected": "true or false"
    },
    "PreferSpreadingPods": {
     "type": "boolean",
     "description": "Containers of a pod go to different balloons, rather than into one.",
     "expected": "true or false"
    },
    "PreferPerNamespaceBalloon": {
     "type": "boolean",
     "description": "Each namespace has a balloon of its own.",
     "expected": "true or false"
    },
    "PreferSpreadOnPhysicalCores": {
     "type": "boolean",
     "description": "One thread of many cores, rather than whole cores.",
     "expected": "true or false"
    },
    "AllocatorTopologyBalancing": {
     "type": "boolean",
     "description": "Balloons are made where most CPUs are free, rather than packed.",
     "expected": "true or false"
    },
    "HideHyperthreads": {
     "type": "boolean",
     "description": "Containers see one thread of each core; the others stay idle.",
     "expected": "true or false"
    },
    "PreferIsolCpus": {
     "type": "boolean",
     "description": "CPUs of isolcpus= come first.",
     "expected": "true or false"
    },
    "PreferCloseToDevices": {
     "type": "array",
     "items": {
      "type": "string",
      "minLength": 1,
      "maxLength": 253,
      "pattern": "^(/sys(/[0-9A-Za-z_:@-][0-9A-Za-z_.:@-]*)+|[0-9A-Fa-f.:]+)$"
     },
     "maxItems": 32,
     "x-kubernetes-list-type": "atomic",
     "description": "Balloons are made near these devices, the first of them first.",
     "expected": "a list of PCI addresses or paths under /sys"
    },
    "ShareIdleCPUsInSame": {
     "type": "string",
     "enum": [
      "core",
      "l3cache",
      "numa",
      "die",
      "package",
      "system",
      "off"
     ],
     "description": "Containers may also run on CPUs that are in no balloon, in the same ...",
     "expected": "core, l3cache, numa, die, package, system, or off"
    },
    "PinMemory": {
     "type": "string",
     "enum": [
      "true",
      "false",
      "pin"
     ],
     "description": "true: as placement.memory prefer; pin: as its pin; false: memory nodes are not set.",
     "expected": "true, false or pin"
    }
   },
   "description": "One type of balloons."
  },
  "maxItems": 200,
  "x-kubernetes-list-type": "atomic",
  "description": "The types of balloons, for the policy balloons: a list of mappings, whose keys are in the table of configuration.md. A container is of the first type that matches it, or of the type its annotation names. Default: [].",
  "expected": "a list of balloon types"
 },
 "policy.balloons.AllocatorTopologyBalancing": {
  "type": "boolean",
  "description": "Balloons are made where most CPUs are free, rather than packed; for types that do not say. Default: false.",
  "expected": "true or false"
 },
 "policy.balloons.PreferSpreadOnPhysicalCores": {
  "type": "boolean",
  "description": "Balloons take one thread of many cores, rather than whole cores; for types that do not say. Default: false.",
  "expected": "true or false"
 },
 "placement.cpus": {
  "type": "string",
  "enum": [
   "preset",
   "shared",
   "exclusive"
  ],
  "description": "What runs on a container's CPUs. shared: others of its domain, too; exclusive: whole CPUs of its own for Guaranteed containers that ask for 1 or more; preset: exclusive with policy.Active topology-aware, else shared. Balloons are shared by those in them, whatever this says. Default: preset.",
  "expected": "preset, shared or exclusive"
 },
 "placement.ladder": {
  "type": "string",
  "enum": [
   "manual",
   "fine"
  ],
  "description": "The rule by which containers climb from one CCX to the machine: that of the Hygon manual, or fine, which tries a cluster of cores (Kunpeng 920: four with L3 tags of their own) before an L3, and the fewest CCXs of one NUMA node before a whole NUMA node. Default: manual.",
  "expected": "manual or fine"
 },
 "placement.size": {
  "type": "string",
  "enum": [
   "limit",
   "demand"
  ],
  "description": "What the set of a container that shares CPUs is sized by. limit: its CPU limit, by the ladder; demand: what it uses, in the smallest place that holds that, never more than by its limit (the options of demand). Default: limit.",
  "expected": "limit or demand"
 },
 "placement.unlimited": {
  "type": "string",
  "enum": [
   "ccx",
   "numa",
   "socket",
   "machine"
  ],
  "description": "Where a container without a CPU limit may run; never less than its request needs. Default: numa.",
  "expected": "ccx, numa, socket or machine"
 },
 "placement.besteffort": {
  "type": "string",
  "enum": [
   "ccx",
   "numa",
   "socket",
   "machine"
  ],
  "description": "Where a BestEffort container may run. Default: numa.",
  "expected": "ccx, numa, socket or machine"
 },
 "placement.l3": {
  "type": "string",
  "enum": [
   "prefer",
   "require",
   "exclusive",
   "spread"
  ],
  "description": "CPUs of a container's own and L3s. prefer: as few L3s as can be; require: one L3; exclusive: no other container in those L3s; spread: one thread a core over many L3s. Where that cannot be had the container shares CPUs; only its own annotation makes a demand of it, and fails the create. Default: prefer.",
  "expected": "prefer, require, exclusive or spread"
 },
 "placement.smt": {
  "type": "string",
  "enum": [
   "any",
   "full-core",
   "hide",
   "spread"
  ],
  "description": "CPUs of a container's own and hyperthreads. any: whole cores first; full-core: nothing but whole cores; hide: whole cores, of which one thread each runs; spread: one thread a core, the others stay free. Default: any.",
  "expected": "any, full-core, hide or spread"
 },
 "placement.cfs_quota": {
  "type": "string",
  "enum": [
   "keep",
   "lift"
  ],
  "description": "The CPU quota of containers with CPUs of their own. keep: as kubelet set it; lift: taken away, from the pod too where all its limited containers have CPUs of their own. Default: keep.",
  "expected": "keep or lift"
 },
 "placement.prefer_isolated": {
  "type": "boolean",
  "description": "Guaranteed containers of 1 up to 2 CPUs get isolated CPUs (isolcpus=) first, where CPUs are exclusive. Default: true.",
  "expected": "true or false"
 },
 "placement.prefer_shared": {
  "type": "boolean",
  "description": "Where CPUs are exclusive: Guaranteed containers of more than 1 and less than 2 CPUs get shared ones all the same, unless annotated. Default: false.",
  "expected": "true or false"
 },
 "placement.hints": {
  "type": "array",
  "items": {
   "type": "string",
   "enum": [
    "devices",
    "mounts"
   ]
  },
  "maxItems": 2,
  "x-kubernetes-list-type": "atomic",
  "description": "What draws a container to a NUMA node: its devices, the disks behind its mounts. Default: [devices, mounts].",
  "expected": "a list of any of devices and mounts; [] for none"
 },
 "placement.colocate_pods": {
  "type": "boolean",
  "description": "Containers of a pod are placed near each other, as if affinity annotations said so. Default: false.",
  "expected": "true or false"
 },
 "placement.colocate_namespaces": {
  "type": "boolean",
  "description": "Containers of a namespace are placed near each other, as if affinity annotations said so. Default: false.",
  "expected": "true or false"
 },
 "placement.max_moves": {
  "type": "integer",
  "minimum": 0,
  "maximum": 1000,
  "description": "How many containers may be moved so that another fits the domain it needs; 0 moves none. Unit: containers. Default: 4.",
  "expected": "a whole number from 0 to 1000"
 },
 "placement.move_exclusive": {
  "type": "boolean",
  "description": "Whether those may be containers with CPUs of their own. Default: false.",
  "expected": "true or false"
 },
 "placement.memory": {
  "type": "string",
  "enum": [
   "prefer",
   "pin",
   "off"
  ],
  "description": "Memory nodes of a container with a memory limit. prefer: those of its CPUs, with the nearest others as long as limits would exceed 90 % of their memory; pin: those of its CPUs, unless its limit alone exceeds them; off: never set. Default: prefer. \"off\" is written in quotes.",
  "expected": "prefer, pin or off"
 },
 "placement.memory_only_nodes": {
  "anyOf": [
   {
    "type": "integer"
   },
   {
    "type": "string"
   }
  ],
  "x-kubernetes-int-or-string": True,
  "pattern": "^([0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*)?$",
  "minimum": 0,
  "maximum": 65535,
  "maxLength": 2048,
  "description": "NUMA nodes with memory but without CPUs (CXL, HBM, PMEM) that placement.memory may use; others are left alone. Unit: NUMA nodes. Default: \"\".",
  "expected": "NUMA nodes such as 2 or 2-3,5, or \"\" for none"
 },
 "placement.reserved_namespaces": {
  "type": "array",
  "items": {
   "type": "string",
   "minLength": 1,
   "maxLength": 253,
   "pattern": "^[!-~]+$"
  },
  "maxItems": 256,
  "x-kubernetes-list-type": "atomic",
  "description": "Namespaces whose containers run on the reserved CPUs, if there are any. Default: [kube-system].",
  "expected": "a list of names or globs, such as [kube-system, \"ops-*\"]"
 },
 "placement.unmanaged_namespaces": {
  "type": "array",
  "items": {
   "type": "string",
   "minLength": 1,
   "maxLength": 253,
   "pattern": "^[!-~]+$"
  },
  "maxItems": 256,
  "x-kubernetes-list-type": "atomic",
  "description": "Namespaces whose containers are left alone, and charged where they run. Default: [].",
  "expected": "a list of names or globs, such as [kube-system, \"ops-*\"]"
 },
 "placement.restart_hold": {
  "anyOf": [
   {
    "type": "integer"
   },
   {
    "type": "string"
   }
  ],
  "x-kubernetes-int-or-string": True,
  "pattern": "^([0-9]{1,9}(\\.[0-9]{0,9})?|([0-9]{1,9}(\\.[0-9]{0,9})?h)?([0-9]{1,9}(\\.[0-9]{0,9})?m)?([0-9]{1,9}(\\.[0-9]{0,9})?s)?([0-9]{1,9}(\\.[0-9]{0,9})?ms)?)$",
  "minimum": 1,
  "maximum": 86400,
  "maxLength": 2048,
  "minLength": 1,
  "description": "How long the CPUs of a container that ended are held for its next attempt. Kubelet's longest back-off is 5m. Unit: seconds. Default: 5m.",
  "expected": "a duration above 0 and up to 24h, such as 300 (seconds), 250ms, 5m or 1h30m"
 },
 "affinity.half_life": {
  "anyOf": [
   {
    "type": "integer"
   },
   {
    "type": "string"
   }
  ],
  "x-kubernetes-int-or-string": True,
  "pattern": "^([0-9]{1,9}(\\.[0-9]{0,9})?|([0-9]{1,9}(\\.[0-9]{0,9})?h)?([0-9]{1,9}(\\.[0-9]{0,9})?m)?([0-9]{1,9}(\\.[0-9]{0,9})?s)?([0-9]{1,9}(\\.[0-9]{0,9})?ms)?)$",
  "minimum": 1,
  "maximum": 86400,
  "maxLength": 2048,
  "minLength": 1,
  "description": "After this time traffic that has stopped counts half. Unit: seconds. Default: 1m6s.",
  "expected": "a duration above 0 and up to 24h, such as 300 (seconds), 250ms, 5m or 1h30m"
 },
 "affinity.message_lines": {
  "type": "number",
  "minimum": 0,
  "maximum": 10000,
  "description": "Cache lines that one message costs besides its bytes. Unit: cache lines. Default: 30.",
  "expected": "a number from 0 to 10000"
 },
 "affinity.least_weight": {
  "type": "number",
  "minimum": 0,
  "maximum": 1000000000000.0,
  "description": "Edges that are lighter do not count. Unit: cache lines a second. Default: 1000.",
  "expected": "a number from 0 to 1e+12"
 },
 "affinity.least_share": {
  "type": "number",
  "minimum": 0,
  "maximum": 1,
  "description": "Edges that are a smaller part of all traffic of either end do not count: they are what glues all containers to name servers and metrics collectors. Default: 0.01.",
  "expected": "a number from 0 to 1"
 },
 "affinity.most_weight": {
  "type": "number",
  "minimum": 1,
  "maximum": 1000000000000000.0,
  "description": "An edge counts as this much at most, whatever a container does to attract another. Unit: cache lines a second. Default: 1e+07.",
  "expected": "a number from 1 to 1e+15"
 },
 "affinity.within": {
  "type": "string",
  "enum": [
   "node",
   "namespace",
   "owner"
  ],
  "description": "Which traffic counts: all of it, only inside a namespace, or only among replicas and containers of one workload. Default: node.",
  "expected": "node, namespace or owner"
 },
 "affinity.declared_weight": {
  "type": "number",
  "minimum": 0,
  "maximum": 1000000000000.0,
  "description": "What a weight of 1 in an affinity annotation counts beside traffic that was seen. Unit: cache lines a second. Default: 10000.",
  "expected": "a number from 0 to 1e+12"
 },
 "affinity.rebalance": {
  "type": "string",
  "enum": [
   "auto",
   "manual"
  ],
  "description": "auto: running containers are moved when a plan pays; manual: only by `cri-resmgr rebalance`. Default: auto.",
  "expected": "auto or manual"
 },
 "affinity.rebalance_interval": {
  "anyOf": [
   {
    "type": "integer"
   },
   {
    "type": "string"
   }
  ],
  "x-kubernetes-int-or-string": True,
  "pattern": "^([0-9]{1,9}(\\.[0-9]{0,9})?|([0-9]{1,9}(\\.[0-9]{0,9})?h)?([0-9]{1,9}(\\.[0-9]{0,9})?m)?([0-9]{1,9}(\\.[0-9]{0,9})?s)?([0-9]{1,9}(\\.[0-9]{0,9})?ms)?)$",
  "minimum": 1,
  "maximum": 86400,
  "maxLength": 2048,
  "minLength": 1,
  "description": "How often a plan is made. Unit: seconds. Default: 1m.",
  "expected": "a duration above 0 and up to 24h, such as 300 (seconds), 250ms, 5m or 1h30m"
 },
 "affinity.hysteresis": {
  "type": "number",
  "minimum": 0,
  "maximum": 1,
  "description": "The part of all communication cost that a plan must save. Default: 0.1.",
  "expected": "a number from 0 to 1"
 },
 "affinity.least_gain": {
  "type": "number",
  "minimum": 0,
  "maximum": 1000,
  "description": "What each moved container must save at least, beside `affinity.hysteresis`. Unit: CPUs. Default: 0.001.",
  "expected": "a number from 0 to 1000"
 },
 "affinity.cooldown": {
  "anyOf": [
   {
    "type": "integer"
   },
   {
    "type": "string"
   }
  ],
  "x-kubernetes-int-or-string": True,
  "pattern": "^([0-9]{1,9}(\\.[0-9]{0,9})?|([0-9]{1,9}(\\.[0-9]{0,9})?h)?([0-9]{1,9}(\\.[0-9]{0,9})?m)?([0-9]{1,9}(\\.[0-9]{0,9})?s)?([0-9]{1,9}(\\.[0-9]{0,9})?ms)?)$",
  "minimum": 1,
  "maximum": 86400,
  "maxLength": 2048,
  "minLength": 1,
  "description": "A container that a plan has moved stays for so long. Unit: seconds. Default: 10m.",
  "expected": "a duration above 0 and up to 24h, such as 300 (seconds), 250ms, 5m or 1h30m"
 },
 "affinity.exchange_overcommit": {
  "type": "number",
  "minimum": 0,
  "maximum": 1,
  "description": "How far above its CPUs, as a part of them, an L3 may be for the milliseconds in which containers that share CPUs change places; 0: they never do. Default: 0.5.",
  "expected": "a number from 0 to 1"
 },
 "affinity.moves_per_minute": {
  "type": "integer",
  "minimum": 0,
  "maximum": 1000,
  "description": "Containers moved in a minute at most; 0 freezes all. Default: 10.",
  "expected": "a whole number from 0 to 1000"
 },
 "affinity.minimum_age": {
  "anyOf": [
   {
    "type": "integer"
   },
   {
    "type": "string"
   }
  ],
  "x-kubernetes-int-or-string": True,
  "pattern": "^([0-9]{1,9}(\\.[0-9]{0,9})?|([0-9]{1,9}(\\.[0-9]{0,9})?h)?([0-9]{1,9}(\\.[0-9]{0,9})?m)?([0-9]{1,9}(\\.[0-9]{0,9})?s)?([0-9]{1,9}(\\.[0-9]{0,9})?ms)?)$",
  "minimum": 1,
  "maximum": 86400,
  "maxLength": 2048,
  "minLength": 1,
  "description": "Younger containers are not moved. Unit: seconds. Default: 1m.",
  "expected": "a duration above 0 and up to 24h, such as 300 (seconds), 250ms, 5m or 1h30m"
 },
 "affinity.move_exclusive": {
  "type": "boolean",
  "description": "Whether containers with CPUs of their own may be moved as well. Default: false.",
  "expected": "true or false"
 },
 "affinity.most_memory_moved": {
  "type": "integer",
  "minimum": 0,
  "maximum": 1000000,
  "description": "Containers with more memory in use do not change their NUMA node. Unit: GiB. Default: 8.",
  "expected": "a whole number from 0 to 1000000"
 },
 "affinity.pressure_guard": {
  "type": "boolean",
  "description": "Whether a move is taken back when containers then wait for CPUs that did not before. Default: true.",
  "expected": "true or false"
 },
 "affinity.measure_effect": {
  "type": "boolean",
  "description": "Whether the hardware's counters are read before and after each plan, where it has those that tell where cache lines come from; a plan begins ten seconds later then. Default: true.",
  "expected": "true or false"
 },
 "affinity.measure_descriptors": {
  "type": "integer",
  "minimum": 0,
  "maximum": 32768,
  "description": "How many counters are open at a time for that: three for each container and CPU of it. Containers with least traffic are left out. Unit: descriptors. Default: 512.",
  "expected": "a whole number from 0 to 32768"
 },
 "affinity.take_back_measured": {
  "type": "boolean",
  "description": "Whether a plan is taken back when its containers then fetch more lines from other L3s or nodes for the same work, beyond the noise of before. Default: false.",
  "expected": "true or false"
 },
 "affinity.repel": {
  "type": "number",
  "minimum": 0,
  "maximum": 1000,
  "description": "Containers of an L3 that together fetch more from memory than `affinity.l3_saturation` push each other apart: what each line beyond it costs, in parts of `affinity.l3_distance`; 0: they do not. Needs the hardware's counters; a plan begins up to ten seconds later then. Default: 0.",
  "expected": "a number from 0 to 1000"
 },
 "affinity.l3_saturation": {
  "type": "integer",
  "minimum": 1,
  "maximum": 100000,
  "description": "What the containers of an L3 fetch from memory when it is saturated; a line has 64 bytes. Unit: million lines a second. Default: 100.",
  "expected": "a whole number from 1 to 100000"
 },
 "affinity.l3_distance": {
  "type": "number",
  "minimum": 0,
  "maximum": 10000,
  "description": "What a cache line costs more between two L3s of one NUMA node than inside an L3. Unit: nanoseconds. Default: 84.",
  "expected": "a number from 0 to 10000"
 },
 "affinity.cluster_distance": {
  "type": "number",
  "minimum": 0,
  "maximum": 10000,
  "description": "What it costs more between two clusters of cores of one L3 than inside a cluster, where clusters are places (placement.ladder fine). Unit: nanoseconds. Default: 28.",
  "expected": "a number from 0 to 10000"
 },
 "affinity.slit_distance": {
  "type": "number",
  "minimum": 0,
  "maximum": 1000,
  "description": "What it costs more for each point of the SLIT distance above 10. Unit: nanoseconds. Default: 4.1.",
  "expected": "a number from 0 to 1000"
 },
 "demand.interval": {
  "anyOf": [
   {
    "type": "integer"
   },
   {
    "type": "string"
   }
  ],
  "x-kubernetes-int-or-string": True,
  "pattern": "^([0-9]{1,9}(\\.[0-9]{0,9})?|([0-9]{1,9}(\\.[0-9]{0,9})?h)?([0-9]{1,9}(\\.[0-9]{0,9})?m)?([0-9]{1,9}(\\.[0-9]{0,9})?s)?([0-9]{1,9}(\\.[0-9]{0,9})?ms)?)$",
  "minimum": 1,
  "maximum": 86400,
  "maxLength": 2048,
  "minLength": 1,
  "description": "How often the CPU time of containers sized by demand (placement.size) is looked at; in shrunk sets of which the kernel does not tell at once that their tasks wait, twice a second. Unit: seconds. Default: 5s.",
  "expected": "a duration above 0 and up to 24h, such as 300 (seconds), 250ms, 5m or 1h30m"
 },
 "demand.window": {
  "anyOf": [
   {
    "type": "integer"
   },
   {
    "type": "string"
   }
  ],
  "x-kubernetes-int-or-string": True,
  "pattern": "^([0-9]{1,9}(\\.[0-9]{0,9})?|([0-9]{1,9}(\\.[0-9]{0,9})?h)?([0-9]{1,9}(\\.[0-9]{0,9})?m)?([0-9]{1,9}(\\.[0-9]{0,9})?s)?([0-9]{1,9}(\\.[0-9]{0,9})?ms)?)$",
  "minimum": 1,
  "maximum": 86400,
  "maxLength": 2048,
  "minLength": 1,
  "description": "Demand is taken from the peaks of so long; only after as long without a change does a set become smaller. Unit: seconds. Default: 10m.",
  "expected": "a duration above 0 and up to 24h, such as 300 (seconds), 250ms, 5m or 1h30m"
 },
 "demand.percentile": {
  "type": "number",
  "minimum": 0,
  "maximum": 1,
  "description": "The part of the peaks, of five seconds each, that demand is not below. Default: 0.95.",
  "expected": "a number from 0 to 1"
 },
 "demand.half_life": {
  "anyOf": [
   {
    "type": "integer"
   },
   {
    "type": "string"
   }
  ],
  "x-kubernetes-int-or-string": True,
  "pattern": "^([0-9]{1,9}(\\.[0-9]{0,9})?|([0-9]{1,9}(\\.[0-9]{0,9})?h)?([0-9]{1,9}(\\.[0-9]{0,9})?m)?([0-9]{1,9}(\\.[0-9]{0,9})?s)?([0-9]{1,9}(\\.[0-9]{0,9})?ms)?)$",
  "minimum": 1,
  "maximum": 86400,
  "maxLength": 2048,
  "minLength": 1,
  "description": "After this time a peak counts half. Unit: seconds. Default: 10m.",
  "expected": "a duration above 0 and up to 24h, such as 300 (seconds), 250ms, 5m or 1h30m"
 },
 "demand.headroom": {
  "type": "number",
  "minimum": 0,
  "maximum": 10,
  "description": "The part of demand that a set has on top of it. Default: 0.25.",
  "expected": "a number from 0 to 10"
 },
 "demand.waiting": {
  "type": "number",
  "minimum": 0.01,
  "maximum": 1,
  "description": "A set is too small where tasks wait for a CPU, and are not throttled, for this part of the time. Default: 0.5.",
  "expected": "a number from 0.01 to 1"
 },
 "demand.usage": {
  "type": "number",
  "minimum": 0.1,
  "maximum": 1,
  "description": "Where the kernel does not tell waiting: a set is too small of which this part is used. Default: 0.9.",
  "expected": "a number from 0.1 to 1"
 },
 "demand.shrinks_per_minute": {
  "type": "integer",
  "minimum": 0,
  "maximum": 1000,
  "description": "Sets that become smaller in a minute at most; 0: none does. Unit: containers. Default: 6.",
  "expected": "a whole number from 0 to 1000"
 },
 "demand.growths_per_hour": {
  "type": "integer",
  "minimum": 0,
  "maximum": 1000,
  "description": "A container whose set was too small more often within an hour has that of its limit until the hour is over. Default: 6.",
  "expected": "a whole number from 0 to 1000"
 }
}
