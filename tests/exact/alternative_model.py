"""A second CP model of the makespan, written differently on purpose, to judge the first.

Every edge is a task with one mode per pair of devices, every op a task with one mode per device;
nothing of the project's model, bounds or cuts is used. Intervals have fixed sizes, or an end of
their own (see "CP-SAT: what to avoid" in CONTRIBUTING). Small problems only.
"""

from __future__ import annotations

from ortools.sat.python import cp_model


def optimal_makespan(problem, effort=0.6):
    """Return (lower, upper) bounds on the optimum in ticks, equal if proved; None if no placement
    exists.
    """
    p, m = problem, cp_model.CpModel()
    n, k = p.num_ops, p.num_devices
    horizon = int(p.compute.clip(0).max(axis=1).sum()) + int(p.transfer.sum()) * k
    begin = [m.new_int_var(0, horizon, "") for _ in range(n)]
    finish = [m.new_int_var(0, horizon, "") for _ in range(n)]
    mode, machine = {}, {d: [] for d in range(k)}
    for v in range(n):
        for d in range(k):
            if p.compute[v, d] < 0:
                continue
            mode[v, d] = m.new_bool_var("")
            ticks = int(p.compute[v, d])
            machine[d].append(
                m.new_optional_fixed_size_interval_var(begin[v], ticks, mode[v, d], "")
            )
            m.add(finish[v] == begin[v] + ticks).only_enforce_if(mode[v, d])
        m.add(sum(mode[v, d] for d in range(k) if (v, d) in mode) == 1)
    for v in range(n):
        for w in range(v):
            if p.colocation[v] >= 0 and p.colocation[v] == p.colocation[w]:
                for d in range(k):
                    m.add(mode.get((v, d), 0) == mode.get((w, d), 0))
    lines = {}
    lives = {d: [] for d in range(k)}
    for t in range(p.num_tensors):
        u = int(p.producer[t])
        readers = p.consumer[p.consumer_ptr[t] : p.consumer_ptr[t + 1]].tolist()
        sending = {}
        for e in range(k):  # one transfer task per destination, one mode per source
            s, f = m.new_int_var(0, horizon, ""), m.new_int_var(0, horizon, "")
            m.add(s >= finish[u])
            for d in range(k):
                if d == e or (u, d) not in mode or not any((v, e) in mode for v in readers):
                    continue
                used = m.new_bool_var("")
                inside = [mode[v, e] for v in readers if (v, e) in mode]
                m.add_max_equality(any_there := m.new_bool_var(""), inside)
                m.add_multiplication_equality(used, [any_there, mode[u, d]])
                ticks = int(p.transfer[t, p.link_class[d, e]])
                interval = m.new_optional_fixed_size_interval_var(s, ticks, used, "")
                m.add(f == s + ticks).only_enforce_if(used)
                sending[d, e] = (used, s, f)
                if p.channel[d, e] >= 0:
                    lines.setdefault(int(p.channel[d, e]), []).append(interval)
                else:
                    m.add(s == finish[u]).only_enforce_if(used)
        for v in readers:  # the edge (u, v): one mode per pair of devices
            pairs = []
            for d in range(k):
                for e in range(k):
                    if (u, d) in mode and (v, e) in mode:
                        pair = m.new_bool_var("")
                        m.add(pair <= mode[u, d])
                        m.add(pair <= mode[v, e])
                        m.add(
                            begin[v] >= (finish[u] if d == e else sending[d, e][2])
                        ).only_enforce_if(pair)
                        pairs.append(pair)
            m.add_exactly_one(pairs)
        if p.memory == "peak" and p.tensor_bytes[t]:
            size = int(p.tensor_bytes[t])
            for d in range(k):
                _lives_at(
                    m, p, t, u, d, readers, mode, begin, finish, sending, horizon, lives[d], size
                )
    for intervals in (*machine.values(), *lines.values()):
        m.add_no_overlap(intervals)
    for d in range(k):
        rest = sum(int(p.resident[v]) * mode[v, d] for v in range(n) if (v, d) in mode)
        m.add(rest <= int(p.capacity[d]))
        if p.memory == "peak" and lives[d]:
            room = m.new_int_var(0, int(p.capacity[d]), "")
            m.add(room <= int(p.capacity[d]) - rest)
            m.add_cumulative([x for x, _ in lives[d]], [s for _, s in lives[d]], room)
    total = m.new_int_var(0, horizon, "")
    m.add_max_equality(total, finish)
    m.minimize(total)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = effort
    outcome = solver.solve(m)
    if outcome == cp_model.INFEASIBLE:
        return None
    upper = (
        round(solver.objective_value)
        if outcome in (cp_model.OPTIMAL, cp_model.FEASIBLE)
        else horizon
    )
    return round(solver.best_objective_bound), upper


def _lives_at(m, p, t, u, d, readers, mode, begin, finish, sending, horizon, lives, size):
    """Add the life of tensor t on device d: at its producer's home, or where it is sent."""
    local = [(v, mode[v, d]) for v in readers if (v, d) in mode]
    if (u, d) in mode:
        stop, length = m.new_int_var(0, horizon, ""), m.new_int_var(0, horizon, "")
        lives.append((m.new_optional_interval_var(begin[u], length, stop, mode[u, d], ""), size))
        m.add(stop >= finish[u]).only_enforce_if(mode[u, d])
        for v, here in local:
            m.add(stop >= finish[v]).only_enforce_if(mode[u, d], here)
        for (a, _), (used, _, f) in sending.items():
            if a == d:
                m.add(stop >= f).only_enforce_if(used)
    for (_, e), (used, s, f) in sending.items():
        if e != d:
            continue
        stop, length = m.new_int_var(0, horizon, ""), m.new_int_var(0, horizon, "")
        start = m.new_int_var(0, horizon, "")
        m.add(start == s).only_enforce_if(used)
        m.add(stop >= f).only_enforce_if(used)
        lives.append((m.new_optional_interval_var(start, length, stop, used, ""), size))
        for v, here in local:
            m.add(stop >= finish[v]).only_enforce_if(used, here)
