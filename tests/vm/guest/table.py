"""The checks, in the order in which a guest makes them, and the runs by name. Imported by the host, too."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Callable

from tests.vm.guest import (
    affinity,
    clocks,
    cpu_time,
    demand,
    disks,
    doctor,
    faults,
    interrupts,
    isolation,
    kubelet,
    load,
    nesting,
    placement,
    plugins,
    removal,
    resctrl,
    restarts,
    rights,
    subjects,
)
from tests.vm.guest.node import Node

Check = Callable[[Node], Awaitable[None]]

#: Done by the guest's main program before there is a node; a failure ends the run.
PREPARATIONS = (
    "the_package_installs",
    "the_packages_units_are_sound",
    "the_runtime_starts",
    "the_service_starts_and_serves",
)

#: What only a kernel that sees these CPUs shows.
_NODE: tuple[Check, ...] = (
    placement.the_kernel_sees_this_machine,
    placement.the_daemon_sees_the_same_machine,
    placement.the_daemon_says_that_all_is_well,
    placement.a_pod_without_limits_runs_in_one_numa_node_and_keeps_all_memory,
    placement.exclusive_cpus_are_nobody_elses_and_come_back,
)
#: The policy's own, which a real kubelet and containerd show on a described machine in a tenth of the time.
_SIZES: tuple[Check, ...] = (
    placement.every_size_from_one_cpu_to_the_machine_has_its_rung,
    placement.pods_fill_every_ccx_before_they_share_one,
    placement.a_resize_climbs_the_ladder,
)
_PLACEMENT = (*_NODE, *_SIZES)
_RESTARTS: tuple[Check, ...] = (
    restarts.a_killed_daemon_comes_back_and_moves_nobody,
    restarts.a_restart_fails_no_call_and_moves_nobody,
    restarts.a_reload_moves_nobody,
    restarts.a_restart_of_the_runtime_moves_nobody,
    restarts.mode_off_leaves_new_pods_alone,
)
#: Minutes under emulation.
_LIFE: tuple[Check, ...] = (
    demand.sets_follow_the_load_by_pressure_triggers,
    plugins.a_preregistered_plugin_is_a_unit_of_its_own,
    restarts.a_newer_runtime_moves_nobody,
    load.a_restart_under_load_fails_no_call_and_moves_nobody,
    load.an_upgrade_under_load_fails_no_call_and_moves_nobody,
    faults.a_boot_without_a_runtime_is_a_node_as_soon_as_there_is_one,
    faults.a_daemon_out_of_memory_is_back_when_there_is_some,
    faults.wrong_permissions_stop_no_pod_and_are_said,
    faults.a_sysfs_without_numa_nodes_moves_nobody_and_is_said,
    faults.a_full_disk_stops_no_pod_and_all_is_kept_when_there_is_room,
)
#: The kernel's rules, which tests/isolation/kernel.py models.
_RESCTRL: tuple[Check, ...] = (
    resctrl.the_kernel_divides_the_l3_of_each_ccx_and_its_bandwidth,
    resctrl.what_the_hardware_cannot_is_refused_with_a_sentence,
    resctrl.a_value_is_rounded_as_its_vendor_has_it_and_others_stay,
    resctrl.groups_run_out_and_a_removed_one_is_free_again,
    resctrl.what_a_task_starts_is_in_its_group,
    resctrl.threads_that_are_there_stay_where_they_are,
    resctrl.a_monitoring_group_counts_what_its_tasks_do_in_their_ccx,
    resctrl.monitoring_groups_run_out_and_what_has_no_counter_says_so,
    isolation.what_the_product_reads_is_this_machine,
    isolation.the_kernel_keeps_the_rules_that_the_model_has,
    isolation.monitoring_tells_what_fills_an_l3_and_leaves_the_groups_of_others,
)
_ISOLATION: tuple[Check, ...] = (
    isolation.batch_beside_protected_has_part_of_that_l3_with_all_it_started,
    isolation.what_is_seen_is_what_is_wanted_after_kill_minus_nine,
    isolation.who_meets_nobody_any_more_has_all_again,
    isolation.off_puts_everything_back,
    isolation.kubelet_disable_puts_everything_back,
)
_ISOLATION_ENDS: tuple[Check, ...] = (
    isolation.a_new_boot_begins_with_the_kernels_own_values,
    isolation.removal_of_the_package_puts_everything_back,
)
#: Isolation beside caches, a file of checks a subject: under cgroup v2, and under v1.
_DISKS: tuple[Check, ...] = (
    disks.a_batch_container_reads_no_more_than_its_class_lets_it,
    disks.a_disk_that_goes_leaves_nothing_and_one_that_comes_is_limited,
    disks.block_io_is_as_before_after_kill_minus_nine_and_off,
    disks.bfq_weighs_by_class,
)
_SUBJECTS: tuple[Check, ...] = (
    rights.each_unit_may_write_what_isolation_writes_and_nothing_else,
    interrupts.interrupts_leave_owned_cpus_and_come_back_over_kill_minus_nine,
    interrupts.a_sink_gathers_all_that_may_be_controlled,
    cpu_time.a_pod_of_batch_gives_way_and_the_runtime_updates_its_containers,
    cpu_time.a_limit_goes_down_at_once_while_there_is_a_burst,
    cpu_time.memory_is_kept_for_all_above_and_an_update_of_the_runtime_changes_it_for_a_moment_only,
    *_DISKS,
    disks.iocost_has_the_costs_of_a_disk_and_weights_count,
)
_SUBJECTS_V1: tuple[Check, ...] = (
    rights.each_unit_may_write_what_isolation_writes_and_nothing_else,
    *_DISKS,
)
#: All subjects at once.
_TOGETHER: tuple[Check, ...] = (
    subjects.all_subjects_at_once_are_as_wanted_after_kill_minus_nine_and_off_again,
    subjects.kubelet_disable_puts_every_file_and_thread_back,
)
_CLOCKS: tuple[Check, ...] = (
    clocks.the_kernel_keeps_the_rules_that_the_model_of_clocks_has,
    clocks.the_kernel_has_what_classes_say_and_all_of_it_comes_back,
)
_REMOVAL: tuple[Check, ...] = (
    removal.removal_gives_every_container_its_cpus_back,
    removal.the_runtime_goes_on_without_us,
    removal.purge_leaves_nothing,
)


@dataclass(frozen=True)
class Run:
    """One boot: ``shape`` and ``system`` by name, the words for the kernel that choose the cgroups."""

    shape: str
    system: str
    python: str
    driver: str
    api: str
    words: tuple[str, ...]
    checks: tuple[Check, ...]
    #: The package is on the disk already: installing takes a minute or two under emulation.
    is_installed: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """All that will have a verdict, in this order."""
        return (*PREPARATIONS[self.is_installed :], *(check.__name__ for check in self.checks))


_V1 = ("systemd.unified_cgroup_hierarchy=0", "systemd.legacy_systemd_cgroup_controller=1")

RUNS: Mapping[str, Run] = {
    "hygon": Run(
        "smt-8", "bookworm", "3.11", "systemd", "runtime.v1", (),
        (
            *_NODE,
            doctor.doctor_says_that_all_of_the_host_is_shown,
            *_RESTARTS,
            kubelet.kubelet_is_switched_over_and_back_to_the_byte,
            affinity.the_observer_sees_by_ebpf,
            affinity.who_talks_is_an_edge_and_a_rebalance_brings_them_together,
            affinity.messages_over_a_unix_socket_are_counted_where_functions_return,
            plugins.a_plugin_sets_what_only_cgroup_v2_has,
            *_REMOVAL,
        ),
    ),
    "places": Run(
        "smt-8", "bookworm", "3.11", "systemd", "runtime.v1", (),
        (
            *_SIZES,
            nesting.what_containers_do_below_or_beside_their_cgroups_is_no_drift,
            nesting.a_pod_under_a_parent_of_its_own_has_that_ones_cpus,
            plugins.a_plugin_sets_hugepage_limits,
        ),
    ),
    "life": Run("cores-4", "bookworm", "3.11", "systemd", "runtime.v1", (), _LIFE),
    "old-cgroup-v1": Run(
        "cores-8", "bullseye", "3.9", "cgroupfs", "runtime.v1alpha2", _V1,
        (
            *_PLACEMENT,
            doctor.doctor_says_that_smt_siblings_are_not_shown,
            *_RESTARTS,
            demand.sets_follow_the_load_without_pressure,
            affinity.the_observer_sees_without_ebpf,
            affinity.who_talks_is_an_edge_and_a_rebalance_brings_them_together,
            plugins.a_plugin_sets_what_only_cgroup_v2_has,
            *_REMOVAL,
        ),
    ),
    "old-cgroup-v2": Run(
        "smt-8", "bullseye", "3.9", "systemd", "runtime.v1alpha2", ("systemd.unified_cgroup_hierarchy=1",),
        (
            *_PLACEMENT,
            *_RESTARTS,
            demand.sets_follow_the_load_by_pressure_triggers,
            affinity.the_observer_sees_by_ebpf,
            affinity.who_talks_is_an_edge_and_a_rebalance_brings_them_together,
            affinity.messages_over_a_unix_socket_are_counted_where_functions_return,
            *_REMOVAL,
        ),
    ),
    # Kernel 5.10 and cgroup v1 alone, as openEuler 22.03 has them; the same kernel with v2, for what needs that; 6.1 and v2.
    "arm-v1": Run(
        "kunpeng-8-old", "bullseye-arm64", "3.9", "cgroupfs", "runtime.v1alpha2", _V1,
        (
            *_PLACEMENT,
            affinity.the_observer_sees_without_ebpf,
            affinity.who_talks_is_an_edge_and_a_rebalance_brings_them_together,
            kubelet.kubelet_is_switched_over_and_back_to_the_byte,
            *_REMOVAL,
        ),
    ),
    "arm-old-v2": Run(
        "kunpeng-8-old", "bullseye-arm64", "3.9", "systemd", "runtime.v1alpha2",
        ("systemd.unified_cgroup_hierarchy=1",),
        (affinity.the_observer_sees_by_ebpf, affinity.who_talks_is_an_edge_and_a_rebalance_brings_them_together),
    ),
    "arm-v2": Run(
        "kunpeng-8", "bookworm-arm64", "3.11", "systemd", "runtime.v1", (),
        (
            *_PLACEMENT,
            affinity.the_observer_sees_by_ebpf,
            affinity.who_talks_is_an_edge_and_a_rebalance_brings_them_together,
            placement.a_cluster_is_the_lowest_rung_of_the_fine_ladder,
            kubelet.kubelet_is_switched_over_and_back_to_the_byte,
            *_REMOVAL,
        ),
    ),
    "subjects": Run("smt-8", "bookworm", "3.11", "systemd", "runtime.v1", (), _SUBJECTS, is_installed=True),
    "subjects-v1": Run(
        "cores-8", "bullseye", "3.9", "cgroupfs", "runtime.v1alpha2", _V1, _SUBJECTS_V1, is_installed=True
    ),
    "together": Run("smt-8", "bookworm", "3.11", "systemd", "runtime.v1", (), _TOGETHER, is_installed=True),
    "clocks": Run("clocks-8", "bookworm", "3.11", "systemd", "runtime.v1", (), _CLOCKS, is_installed=True),
    # Each vendor's resctrl; on Hygon's what the daemon does with it as well.
    "resctrl-hygon": Run(
        "resctrl-8", "bookworm", "3.11", "systemd", "runtime.v1", (), (*_RESCTRL, *_ISOLATION), is_installed=True
    ),
    "resctrl-ends": Run(
        "resctrl-8", "bookworm", "3.11", "systemd", "runtime.v1", (), _ISOLATION_ENDS, is_installed=True
    ),
    "resctrl-amd": Run(
        "resctrl-amd-8", "bookworm", "3.11", "systemd", "runtime.v1", (), _RESCTRL, is_installed=True
    ),
    "resctrl-intel": Run(
        "resctrl-intel-8", "bookworm", "3.11", "systemd", "runtime.v1", (), _RESCTRL, is_installed=True
    ),
    **{
        f"shown-{shape}": Run(
            shape, "bookworm", "3.11", "systemd", "runtime.v1", (), (doctor.doctor_names_what_is_not_shown,)
        )
        for shape in ("documented", "no-topoext", "no-topology", "no-threads")
    },
}  # fmt: skip
