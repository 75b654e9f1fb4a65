"""What holds of every partition that a controller writes, and of every step from one state to the next."""

from kafkad.metadata.image import NO_LEADER, RECOVERED, RECOVERING


def check_state(image, name, state):
    replicas, isr, elr = set(state.replicas), set(state.isr), set(state.elr)
    what = f"{name}: {state}"
    assert len(state.directories) == len(state.replicas), what
    assert len(isr) == len(state.isr), what
    assert isr <= replicas, what
    assert not isr & elr, what
    if state.leader != NO_LEADER:
        assert state.leader in isr, what
        broker = image.brokers[state.leader]
        assert not broker.fenced, what
        assert broker.has_online(state.directory(state.leader)), what
    elif image.elr_enabled:
        assert len(state.last_known_elr) == 1, what
    if not image.elr_enabled:
        assert isr, what
        assert not elr, what
    if state.leader_recovery_state == RECOVERING:
        assert len(isr) <= 1, what
    if image.elr_enabled:
        fenced = {b for b in isr if b not in image.brokers or image.brokers[b].fenced}
        assert not fenced, f"{what} has fenced members {fenced}"


def check_step(name, old, state):
    what = f"{name}: {old} became {state}"
    assert state.partition_epoch >= old.partition_epoch, what
    assert state.leader_epoch >= old.leader_epoch, what
    if state != old:
        assert state.partition_epoch > old.partition_epoch, what
    if state.leader != old.leader:
        assert state.leader_epoch > old.leader_epoch, what
    if state.leader not in (old.leader, NO_LEADER):
        clean = state.leader in old.isr or state.leader in old.elr
        unclean = state.leader_recovery_state == RECOVERING
        moved = old.removing_replicas and not state.removing_replicas  # its leader had it in sync
        assert clean or unclean or moved, f"{what} by nobody's leave"
    if old.leader_recovery_state == RECOVERED and state.leader_recovery_state == RECOVERING:
        assert state.leader != old.leader, what
