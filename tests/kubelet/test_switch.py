"""Pointing kubelet at us changes one value; pointing it back gives the same bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cri_proxy.kubelet.edits import BadKubeletFile
from cri_proxy.kubelet.record import SwitchRecord, merged, read_record, write_record
from cri_proxy.kubelet.settings import survey
from cri_proxy.kubelet.switch import (
    CannotSwitch,
    WayBack,
    after_edits,
    diff_of,
    left_over,
    plan_disable,
    plan_enable,
    plan_images,
    remarks_on,
    still_ours,
)
from tests.kubelet.test_settings import found
from tests.kubelet_trees import CONFIG, FLAGS_ENV, INSTANCE, KUBEADM, OLD, RANCHER, TREES, UNIT, flags_env

SOCKETS = ("/var/run/cri-resmgr.sock", "/var/run/cri-resmgr/cri-resmgr.sock")
US = "unix:///var/run/cri-resmgr.sock"
EDITED = {
    "kubeadm, flags file": (lambda text: text.replace("3.9", "3.10"), "only our value"),
    "kubeadm, config file": (lambda text: text + "new: 1\n", "only our value"),
    "set to nothing": (lambda text: "new: 1\n" + text, "only our value"),
    "default, with other flags": (lambda text: text + "\nX=1\n", "only our value"),
    "nothing set, kubeadm": (lambda text: text + "X=1\n", "only our value"),
    "nothing set, JSON": (lambda text: text.replace("1", "2"), "only our value"),
    "drop-in, a variable of its own": (lambda text: text + "# more\n", "only our value"),
}

#: What is restarted where k3s or rke2 start kubelet.
RESTARTED = {
    "k3s": "k3s",
    "rke2": "rke2-server",
    "k3s, on its command line": "k3s",
    "k3s, an agent's endpoint of its own": "k3s-agent",
    "k3s, one argument that is no list": "k3s",
    "rke2, a later file adds it": "rke2-server",
    "rke2, a later file takes its place": "rke2-server",
}

Texts = dict[str, Optional[str]]


def enabled(files: dict[str, str]) -> tuple[Texts, SwitchRecord]:
    setup = found(files)
    edits = plan_enable(setup, files, US, SOCKETS)
    return after_edits(files, edits), SwitchRecord(
        US, setup.endpoint, tuple(edit.change for edit in edits), 1.0
    )


def disabled(files: dict[str, str], now: Texts, record: SwitchRecord) -> tuple[Texts, WayBack]:
    way = plan_disable(record, now, files)
    back = after_edits(now, way.edits)
    return {path: text for path, text in back.items() if text is not None}, way


@pytest.mark.parametrize("name", TREES)
def test_enable_changes_only_the_winning_place_and_takes_effect(name: str) -> None:
    files = TREES[name].files
    now, record = enabled(files)
    assert {path for path in now if now[path] != files.get(path)} == set(TREES[name].changed) == record.paths
    assert survey(now).endpoint == US


@pytest.mark.parametrize("name", TREES)
def test_disable_gives_the_same_bytes(name: str) -> None:
    files = TREES[name].files
    back, way = disabled(files, *enabled(files))
    assert back == files
    assert way.remarks == ()


@pytest.mark.parametrize("name", TREES)
def test_enabling_twice_changes_nothing_more(name: str) -> None:
    now, _ = enabled(TREES[name].files)
    assert plan_enable(survey(now), now, US, SOCKETS) == []


@pytest.mark.parametrize("name", TREES)
def test_one_value_is_all_the_diff_shows(name: str) -> None:
    files = TREES[name].files
    text = diff_of(plan_enable(found(files), files, US, SOCKETS))
    assert len([line for line in text.splitlines() if line.startswith("+") and US in line]) == len(
        TREES[name].changed
    )
    assert "\r" not in text


@pytest.mark.parametrize("name", EDITED)
def test_from_a_file_that_others_have_changed_only_our_value_is_taken(name: str) -> None:
    files, [path] = TREES[name].files, TREES[name].changed
    change, phrase = EDITED[name]
    now, record = enabled(files)
    back, way = disabled(files, {**now, path: change(now[path] or "")}, record)
    assert back[path] == change(files.get(path, ""))
    assert phrase in way.remarks[0]


def test_without_its_copy_only_our_value_is_taken_and_said() -> None:
    files = TREES["kubeadm, flags file"].files
    now, record = enabled(files)
    way = plan_disable(record, now, {})
    assert after_edits(now, way.edits) == files
    assert "copy" in way.remarks[0]


def test_what_kubeadm_has_written_anew_stays_and_is_said() -> None:
    files = TREES["kubeadm, flags file"].files
    now, record = enabled(files)
    fresh = flags_env("")
    back, way = disabled(files, {**now, FLAGS_ENV: fresh}, record)
    assert back[FLAGS_ENV] == fresh
    assert way.remarks == (
        f"{FLAGS_ENV} has been changed by others since; it does not name us any more and stays as it is",
    )


def test_a_file_that_is_gone_is_not_made_again() -> None:
    files = TREES["kubeadm, flags file"].files
    now, record = enabled(files)
    way = plan_disable(record, {**now, FLAGS_ENV: None}, files)
    assert way.edits == ()
    assert "gone" in way.remarks[0]


def test_a_switch_that_was_never_made_is_undone_by_doing_nothing() -> None:
    files = TREES["kubeadm, flags file"].files
    _, record = enabled(files)
    assert plan_disable(record, files, files) == WayBack((), ())


def test_enabling_again_after_an_upgrade_undoes_both() -> None:
    files = TREES["kubeadm, instance-config"].files
    now, first = enabled(files)
    upgraded = {**now, CONFIG: files[CONFIG] + "new: true\n"}
    edits = plan_enable(survey(upgraded), upgraded, US, SOCKETS)
    assert [edit.path for edit in edits] == [CONFIG]
    record = merged(
        SwitchRecord(US, OLD, tuple(e.change for e in edits), 2.0), first, still_ours(first, upgraded)
    )
    copies = {**files, CONFIG: upgraded[CONFIG] or ""}
    assert after_edits({}, plan_disable(record, after_edits(upgraded, edits), copies).edits) == {
        CONFIG: upgraded[CONFIG],
        INSTANCE: files[INSTANCE],
    }


@pytest.mark.parametrize("name", RANCHER)
def test_where_another_starts_kubelet_it_is_said_what_to_type(name: str) -> None:
    files = RANCHER[name].files
    with pytest.raises(CannotSwitch) as caught:
        plan_enable(found(files), files, US, SOCKETS)
    assert US in caught.value.hint
    assert f"systemctl daemon-reload && systemctl restart {RESTARTED[name]}" in caught.value.hint


REFUSED = {
    "a wrapper sets the flag": (
        {UNIT: "[Service]\nExecStart=/opt/start.sh\n"},
        ("kubelet", f"--container-runtime-endpoint={OLD}"),
        "no unit or environment file",
    ),
    "no file for flags, no configuration": (
        {UNIT: "[Service]\nExecStart=/usr/bin/kubelet\n"}, (), "no place to name the runtime's socket",
    ),
    "a configuration that is not there": (
        {UNIT: "[Service]\nExecStart=/usr/bin/kubelet --config=/etc/k.yaml\n"}, (), "/etc/k.yaml does not exist",
    ),
    "an alias": (
        {**KUBEADM, CONFIG: f"a: &x {OLD}\ncontainerRuntimeEndpoint: *x\n"}, (), f"{CONFIG}:2: containerRuntimeEndpoint",
    ),
    "a block": (
        {**KUBEADM, CONFIG: f"containerRuntimeEndpoint: >-\n  {OLD}\n"}, (), f"{CONFIG}:1: containerRuntimeEndpoint",
    ),
}  # fmt: skip


@pytest.mark.parametrize("flag", ["docker", "rkt"])
def test_a_kubelet_with_a_runtime_inside_is_not_switched(flag: str) -> None:
    files = {UNIT: f"[Service]\nExecStart=/usr/bin/kubelet --container-runtime={flag} --config=/etc/k.yaml\n"}
    with pytest.raises(CannotSwitch, match=f"{UNIT}:2: .*--container-runtime=remote, not {flag}"):
        plan_enable(found(files), {**files, "/etc/k.yaml": "a: 1\n"}, US, SOCKETS)


NOT_OURS = f"[Service]\nExecStart=/usr/bin/kubelet --container-runtime-endpoint={OLD}"
RKE2 = RANCHER["rke2"].files
#: files, command line, whether kubelet is at us; then what is left over.
LEFT_OVER: dict[str, tuple[dict[str, str], tuple[str, ...], bool, Optional[str]]] = {
    "nothing": ({UNIT: NOT_OURS}, (), False, None),
    "nothing that a restart does not end": ({UNIT: NOT_OURS}, ("kubelet",), True, None),
    "the endpoint": ({UNIT: NOT_OURS.replace(OLD, US)}, (), False, f"points at {UNIT}:2"),
    "rke2 has not restarted it": (RKE2, ("kubelet",), True, "points at its command line"),
    "rke2 has another": (RKE2, ("kubelet",), False, None),
    "images": ({UNIT: f"{NOT_OURS} --image-service-endpoint={US}"}, (), False, f"pulls images through {UNIT}:2"),
    "images, which a restart ends": ({UNIT: NOT_OURS}, ("kubelet", f"--image-service-endpoint={US}"), True, None),
    "a wrapper": ({UNIT: "[Service]\nExecStart=/opt/start.sh\n"}, ("kubelet",), True, "points at its command line"),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT_OVER)
def test_what_we_have_not_written_and_cannot_end_is_found(name: str) -> None:
    files, argv, is_at_us, expected = LEFT_OVER[name]
    obstacle = left_over(found(files, argv), SOCKETS, is_at_us)
    assert (f"{obstacle.what} {obstacle.place}" if obstacle else None) == expected


NEW = "unix:///run/new/cri-resmgr.sock"


@pytest.mark.parametrize("name", TREES)
def test_a_switch_to_another_socket_of_ours_is_undone_with_the_first(name: str) -> None:
    files = TREES[name].files
    now, first = enabled(files)
    edits = plan_enable(survey(now), now, NEW, (NEW,))
    again = SwitchRecord(NEW, first.previous, tuple(edit.change for edit in edits), 2.0)
    record = merged(again, first, still_ours(first, now))
    switched = after_edits(now, edits)
    assert survey(switched).endpoint == NEW
    back, way = disabled(files, switched, record)
    assert (back, way.remarks) == (files, ())
    # Where the copies are lost, our value is taken out.
    taken_out = after_edits(switched, plan_disable(record, switched, {}).edits)
    assert survey(taken_out).endpoint == TREES[name].endpoint


def test_a_file_that_others_have_changed_between_two_switches_loses_our_value_only() -> None:
    files = TREES["kubeadm, config file"].files
    now, first = enabled(files)
    changed = {**now, CONFIG: f"{now[CONFIG]}new: 1\n"}
    edits = plan_enable(survey(changed), changed, NEW, (NEW,))
    again = SwitchRecord(NEW, first.previous, tuple(edit.change for edit in edits), 2.0)
    record = merged(again, first, still_ours(first, changed))
    back = after_edits(changed, plan_disable(record, after_edits(changed, edits), files).edits)
    assert back[CONFIG] == f"{files[CONFIG]}new: 1\n"


@pytest.mark.parametrize("name", REFUSED)
def test_what_we_cannot_write_is_refused_with_a_hint(name: str) -> None:
    files, argv, phrase = REFUSED[name]
    with pytest.raises(CannotSwitch) as caught:
        plan_enable(found(files, argv), files, US, SOCKETS)
    assert phrase in str(caught.value)
    assert US in caught.value.hint


def test_a_setting_made_by_hand_counts_as_ours_in_any_spelling() -> None:
    files = {**KUBEADM, CONFIG: "containerRuntimeEndpoint: /run/cri-resmgr/cri-resmgr.sock\n"}
    assert plan_enable(found(files), files, US, SOCKETS) == []


def test_the_static_cpu_manager_and_what_a_kubeadm_upgrade_does_are_said() -> None:
    files = {
        **TREES["kubeadm, flags file"].files,
        CONFIG: "cpuManagerPolicy: static\ntopologyManagerPolicy: restricted\n",
    }
    setup = found(files)
    said = " | ".join(remarks_on(setup, plan_enable(setup, files, US, SOCKETS), US))
    assert "CPU manager is static" in said
    assert "topology manager is restricted" in said
    assert f"kubeadm.alpha.kubernetes.io/cri-socket={US}" in said


def test_a_separate_image_endpoint_stays_and_is_said() -> None:
    files = TREES["a separate image endpoint"].files
    setup = found(files)
    edits = plan_enable(setup, files, US, SOCKETS)
    assert remarks_on(setup, edits, US)[0] == "the image endpoint stays unix:///run/i.sock"
    assert "imageServiceEndpoint: unix:///run/i.sock" in (edits[0].after or "")


IMAGES = "unix:///run/images.sock"
#: Here kubelet has all it is given from its command line, and no variable of it is for others.
NO_PLACE = [
    "drop-in, the flag inline",
    "drop-in, the flag quoted and continued",
    "drop-in, a variable of its own",
    "ExecStart with comments between its lines",
    "a variable that is one word",
]
WITH_PLACE = sorted(TREES.keys() - {"a separate image endpoint", *NO_PLACE})


@pytest.mark.parametrize("name", WITH_PLACE)
def test_the_image_service_is_written_too_and_taken_back_with_the_endpoint(name: str) -> None:
    files = TREES[name].files
    setup = found(files)
    edits = plan_images(setup, files, plan_enable(setup, files, US, SOCKETS), IMAGES)
    now = after_edits(files, edits)
    after = survey(now)
    assert (after.endpoint, after.images) == (US, IMAGES)
    assert len({edit.path for edit in edits}) == len(edits)
    record = SwitchRecord(US, setup.endpoint, tuple(edit.change for edit in edits), 1.0)
    assert disabled(files, now, record)[0] == files


@pytest.mark.parametrize("name", WITH_PLACE)
def test_an_image_service_that_is_written_later_is_undone_with_the_switch(name: str) -> None:
    files = TREES[name].files
    now, older = enabled(files)
    edits = plan_images(survey(now), now, [], IMAGES)
    newer = SwitchRecord(US, older.previous, tuple(edit.change for edit in edits), 2.0)
    record = merged(newer, older, still_ours(older, now))
    then = after_edits(now, edits)
    back, way = disabled(files, then, record)
    assert survey(back).endpoint == survey(files).endpoint
    if {edit.path for edit in edits} <= {change.path for change in older.changes}:
        assert (back, way.remarks) == (files, ())


def test_an_image_service_that_is_us_is_replaced() -> None:
    files = {**KUBEADM, CONFIG: f"containerRuntimeEndpoint: {US}\nimageServiceEndpoint: {US}\n"}
    (edit,) = plan_images(found(files), files, [], IMAGES)
    assert edit.after == f"containerRuntimeEndpoint: {US}\nimageServiceEndpoint: {IMAGES}\n"


@pytest.mark.parametrize("name", NO_PLACE)
def test_where_an_image_service_has_no_place_it_is_said_what_kubelet_is_to_be_given(name: str) -> None:
    files = TREES[name].files
    with pytest.raises(CannotSwitch) as caught:
        plan_images(found(files), files, [], IMAGES)
    assert f"--image-service-endpoint={IMAGES}" in caught.value.hint


def test_of_an_image_service_in_the_files_of_others_it_is_said_what_to_type() -> None:
    files = RANCHER["k3s"].files
    with pytest.raises(CannotSwitch) as caught:
        plan_images(found(files), files, [], IMAGES)
    assert f'"image-service-endpoint={IMAGES}"' in caught.value.hint


def test_a_record_reads_back_as_it_was_written() -> None:
    _, record = enabled(TREES["kubeadm, instance-config"].files)
    assert read_record("r", write_record(record)) == record


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 2}', '{"version": 1, "changes": [{}]}'])
def test_a_record_of_another_shape_is_named(text: str) -> None:
    with pytest.raises(BadKubeletFile, match=r"^/x/record\.json: expected the record"):
        read_record("/x/record.json", text)


def test_a_record_keeps_no_file_that_does_not_name_us_any_more() -> None:
    _, older = enabled(TREES["kubeadm, instance-config"].files)
    newer = replace(older, changes=(), written_at=2.0)
    assert merged(newer, older, frozenset([INSTANCE])).paths == {INSTANCE}


#: What may stand around a value, in any order: comments, quotes, blanks, line ends, other flags.
PIECES = st.sampled_from(
    [
        "# c\n",
        "\n",
        "\r\n",
        "; x=\n",
        "A=1\n",
        "B='q r'\r\n",
        'C="--v=2 \\\n  --w"\n',
        "  D=$E\n",
        "é\udcff\n",
        "F=\\\n",
        "G",
    ]
)


@given(
    st.lists(PIECES, max_size=6), st.sampled_from(["", "'", '"']), st.booleans(), st.lists(PIECES, max_size=4)
)
def test_whatever_stands_around_it_there_and_back_is_byte_identical(
    before: list[str], quote: str, is_set: bool, after: list[str]
) -> None:
    flags = f"--a=b --container-runtime-endpoint={OLD}" if is_set else "--a=b"
    text = "".join(before) + f"\nKUBELET_EXTRA_ARGS={quote}{flags}{quote}\n" + "".join(after)
    files = {**KUBEADM, "/etc/default/kubelet": text}
    now, record = enabled(files)
    assert survey(now).endpoint == US
    assert disabled(files, now, record)[0] == files
    assert after_edits(now, plan_disable(record, now, {}).edits) == files


#: What else a configuration may hold.
LINES = st.sampled_from(
    ["# c", "", "a: 1", "b: 'x: y'", "c:\n- 1\n- {d: 2}", "e: |\n  containerRuntimeEndpoint: no", "f: é"]
)


@given(st.lists(LINES, max_size=7), st.sampled_from(["\n", "\r\n"]), st.booleans(), st.booleans())
def test_whatever_else_a_configuration_says_there_and_back_is_byte_identical(
    lines: list[str], end: str, is_set: bool, has_last_newline: bool
) -> None:
    mine = [f"containerRuntimeEndpoint:   '{OLD}'  # here"] if is_set else ["kind: KubeletConfiguration"]
    text = "\n".join([*lines[:3], *mine, *lines[3:]]).replace("\n", end) + (end if has_last_newline else "")
    files = {UNIT: "[Service]\nExecStart=/usr/bin/kubelet --config=/etc/k.yaml\n", "/etc/k.yaml": text}
    now, record = enabled(files)
    assert survey(now).endpoint == US
    assert disabled(files, now, record)[0] == files
    assert after_edits(now, plan_disable(record, now, {}).edits) == files
