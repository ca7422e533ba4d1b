#!/usr/bin/env python3
"""Writes tests/unit/sched/sample_golden.json: what the sampler must give, worked out independently in
float64 with numpy, by sorting, from the rules in src/sched/sample.h.

    python3 tests/oracle/sample_golden.py > tests/unit/sched/sample_golden.json     (numpy 1.24 or later)

Logits are multiples of 1/64 (written times 64): short in text, exact in float32, often equal. Cases in
which a bar (top_p's mass, min_p's or xtc's share) lies within 1e-4 of a token are thrown away: there
the rounding of float32 may decide.
"""
import json
import sys

import numpy as np

EDGE = 1e-4


class TooClose(Exception):
    pass


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def penalise(x, c):
    for i, b in c["bias"]:
        x[i] += b
    seen = c["prompt"] + c["made"]
    if c["repetition_window"]:
        seen = seen[-c["repetition_window"]:]
    for i in set(seen):
        x[i] = x[i] * c["repetition_penalty"] if x[i] < 0 else x[i] / c["repetition_penalty"]
    for i in set(c["made"]):
        x[i] -= c["presence_penalty"]
        x[i] -= c["frequency_penalty"] * c["made"].count(i)
    return x


def clear_of(values, bar):
    if np.any(np.abs(values - bar) < EDGE * max(bar, 1e-12)):
        raise TooClose


def top_p(lp, p):
    prob = np.exp(lp)
    order = np.argsort(-lp, kind="stable")
    before = np.concatenate([[0.0], np.cumsum(prob[order])[:-1]])
    clear_of(before, p * prob.sum())
    last = order[np.nonzero(before < p * prob.sum())[0].max()]
    return np.where(lp >= lp[last], lp, -np.inf)


def min_p(lp, p):
    clear_of(np.exp(lp - lp.max()), p)
    return np.where(lp < lp.max() + np.log(p), -np.inf, lp)


def xtc(lp, threshold, spared):
    prob = softmax(lp)
    clear_of(prob, threshold)
    above = prob > threshold
    if not above.any():
        return lp
    drop = prob > prob[above].min() * (1 + 1e-12)
    drop[spared] = False
    return np.where(drop, -np.inf, lp)


def top_k(lp, k):
    keep = np.argsort(-lp, kind="stable")[:k]
    out = np.full_like(lp, -np.inf)
    out[keep] = lp[keep]
    return out


def solve(c):
    x = penalise(np.array(c["logits"], dtype=np.float64), c)
    lp = x - x.max() - np.log(np.exp(x - x.max()).sum())
    full = lp.copy()
    if c["temperature"] == 0:
        return full, {int(np.argmax(x)): 1.0}
    if c["top_p"] < 1:
        lp = top_p(lp, c["top_p"])
    if c["min_p"] > 0:
        lp = min_p(lp, c["min_p"])
    if c["xtc_probability"] > 0:
        lp = xtc(lp, c["xtc_threshold"], c["no_xtc"])
    if 0 < c["top_k"] < len(lp):
        lp = top_k(lp, c["top_k"])
    prob = softmax(lp / c["temperature"])
    return full, {int(i): float(prob[i]) for i in np.nonzero(np.isfinite(lp))[0]}


def make(rng):
    n = int(rng.choice([5, 40, 97, 300]))
    on = lambda share: rng.random() < share
    pick = lambda count: [int(i) for i in rng.integers(0, n, count)]
    r = lambda lo, hi: float(np.float32(round(rng.uniform(lo, hi), 3)))
    return {
        "logits": [float(v) for v in np.round(rng.normal(0, rng.choice([1, 2, 5]), n) * 64) / 64],
        "temperature": 0.0 if on(0.1) else r(0.1, 2),
        "top_p": r(0.05, 0.99) if on(0.5) else 1.0,
        "min_p": r(0.01, 0.5) if on(0.4) else 0.0,
        "xtc_probability": 1.0 if on(0.4) else 0.0,
        "xtc_threshold": r(0.01, 0.3),
        "no_xtc": pick(2),
        "top_k": int(rng.integers(1, 20)) if on(0.4) else 0,
        "repetition_penalty": r(0.7, 1.8) if on(0.5) else 1.0,
        "repetition_window": int(rng.integers(1, 8)) if on(0.5) else 0,
        "presence_penalty": r(-2, 2) if on(0.4) else 0.0,
        "frequency_penalty": r(-2, 2) if on(0.4) else 0.0,
        "bias": [[i, r(-20, 20)] for i in pick(3)] if on(0.4) else [],
        "prompt": pick(int(rng.integers(0, 6))),
        "made": pick(int(rng.integers(0, 6))),
    }


def main():
    rng = np.random.default_rng(3)
    cases = []
    while len(cases) < 90:
        c = make(rng)
        try:
            full, dist = solve(c)
        except TooClose:
            continue
        order = np.argsort(-full, kind="stable")[:5]
        c["top"] = [[int(i), round(float(full[i]), 6)] for i in order]
        c["dist"] = [[i, float("%.6g" % p)] for i, p in sorted(dist.items())]
        c["logits_x64"] = [int(v * 64) for v in c.pop("logits")]
        cases.append(c)
    sys.stdout.write("[\n" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "\n]\n")


main()
