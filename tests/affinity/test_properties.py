"""Traffic, plans and moves taken back among everything else that happens: all of test_engine_properties.py holds."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from cri_proxy.affinity.moves import in_exchanges, plan_of
from cri_proxy.affinity.problem import snapshot_of
from cri_proxy.affinity.settings import AffinitySettings
from policies.affinity.graph.traffic import Traffic
from policies.affinity.planner.planner import plan
from policies.affinity.pull.observed import owner_of_container
from tests.engine.test_engine_properties import POLICIES, Node_, index
from tests.machines import HYGON_7285_2S, MEMORYLESS_NODE, OFFLINE_CPUS, UNEVEN_CCX, VM_NO_CACHE_INFO


class Talking(Node_):
    """A node whose containers talk, and are moved by plans."""

    @rule(pairs=st.lists(st.tuples(index, index, st.sampled_from([1e3, 1e5, 1e7])), max_size=8))
    def talk(self, pairs: list[tuple[int, int, float]]) -> None:
        edges: dict[str, dict[str, float]] = {}
        owners: dict[str, dict[str, float]] = {}
        for one, other, weight in pairs:
            a, b = self._pick(one), self._pick(other)
            if a in self.engine.grants and b in self.engine.grants and a != b:
                names = [owner_of_container(self.engine.grants[key].container) for key in (a, b)]
                for table, ends in ((edges, (a, b)), (owners, names)):
                    table.setdefault(ends[0], {})[ends[1]] = weight
                    table.setdefault(ends[1], {})[ends[0]] = weight
        self.engine.set_traffic(Traffic(1, edges, owners))

    @rule(most=st.sampled_from([1, 2, 100]), taken_back=st.booleans())
    def rebalance(self, most: int, taken_back: bool) -> None:
        options = AffinitySettings(minimum_age_s=0.0, cooldown_s=0.0)
        question = snapshot_of(self.engine, options, self.now_s)
        chosen = plan_of(self.engine, question, plan(question.problem), most, self.now_s)
        owned = {key: grant.exclusive for key, grant in self.engine.grants.items()}
        self._send(self.engine.apply(chosen))
        for together in in_exchanges(chosen.moves):
            for move in together:
                assert self.engine.grants[move.id].exclusive == owned[move.id]
            if taken_back:
                self._send(self.engine.take_back(together, "tried"))

    def teardown(self) -> None:
        super().teardown()
        assert not self.engine.replicas


@pytest.mark.parametrize("policy", ["hygon", "owning", "topology-aware", "balloons"])
@pytest.mark.parametrize("name", [HYGON_7285_2S, UNEVEN_CCX, VM_NO_CACHE_INFO, OFFLINE_CPUS, MEMORYLESS_NODE])
def test_a_few_hundred_random_steps_with_traffic_and_plans(name: str, policy: str) -> None:
    run_state_machine_as_test(
        type("Node", (Talking,), {"name": name, "make_policy": staticmethod(POLICIES[policy])}),
        settings=settings(
            max_examples=10,
            stateful_step_count=50,
            deadline=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
